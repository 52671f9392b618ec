"""Shell scripts are read and never run: variables, quotes, lists, conditions, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rftd.daemon.config.source import SourceMap
from rftd.daemon.config.verl.importing import import_script
from rftd.daemon.config.verl.shell.reading import read_script

Refused = Callable[[str], str]
RUN = "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_files=d/train.jsonl"


PARTS_OF_A = ("last", "/m/Qwen-7B", "last.bin", "/m/Qwen-7B")


def words(text: str) -> list[str]:
    """The texts of the last command's words."""
    return [word.text for word in read_script(text, SourceMap("run.sh")).commands[-1]]


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("run a b", ["run", "a", "b"]),
        ("run a \\\n  b # said\n", ["run", "a", "b"]),
        ("run 'a b' \"c d\" e\\ f", ["run", "a b", "c d", "e f"]),
        ("X=1\nrun a=$X b=${X} c='$X' d=\"$X\"", ["run", "a=1", "b=1", "c=$X", "d=1"]),
        ('run $HOME/x "${HOME}"', ["run", "${oc.env:HOME}/x", "${oc.env:HOME}"]),
        ("run a=${X:-8} b=${Y-9} c=${Z:=7}", ["run", "a=8", "b=9", "c=7"]),
        ("X=\nrun a=${X:-8} b=${X-9}", ["run", "a=8", "b="]),
        ("X=2\nrun a=${Y:-$X/b}", ["run", "a=2/b"]),
        ("export A=1 B=x\nrun $A$B", ["run", "1x"]),
        ("A=x\nA+=y\nrun $A", ["run", "xy"]),
        ('A=(a "b c"\n  # said\n  d)\nA+=(e)\nrun "${A[@]}" z', ["run", "a", "b c", "d", "e", "z"]),
        ("A='x=1 y=2'\nrun $A \"$A\"", ["run", "x=1", "y=2", "x=1 y=2"]),
        ("N=3\nrun $((N * (2 + 1))) $(( $N/2 )) $((-7 / 2)) $((-7 % 2))", ["run", "9", "1", "-3", "-1"]),
        ('run a $@ "$@" $*', ["run", "a"]),
        ("run a=1 2>&1 | tee log.txt > x", ["tee", "log.txt"]),
        ("A=1 run b", ["run", "b"]),
        ("set -x\nrun 'é ü' # ✓", ["run", "é ü"]),
        ('run "a\\"b\\$c"', ["run", 'a"b$c']),
        ("run '${data.x}' \"${data.x}\"", ["run", "${data.x}", "${data.x}"]),
        ("cat <<EOF > x\nrun 'b\nEOF\nrun $(pwd)/a ${PWD}/b", ["run", "./a", "./b"]),
        ("A=/m/Qwen-7B/last.bin\nrun $(basename $A .bin) $(dirname $A) ${A##*/} ${A%/*}", ["run", *PARTS_OF_A]),
        ("A=Aa\nrun ${A,,} ${A^^} ${A:+x} ${B:+x} ${1:-y} x$(date +%F)", ["run", "aa", "AA", "x", "y", "xnow"]),
        ("A=2\nif [ $A -gt 1 ] && [[ $A != 3 ]]; then B=x; else B=y; fi\nrun $B", ["run", "x"]),
        ('A=2\nif ! [ -n "$A" ]; then B=x; elif [[ $A == 2* ]]; then B=y; fi\nrun $B', ["run", "y"]),
        ("while [[ $# -gt 0 ]]; do A=$1; shift; done\nrun ${A:-none}", ["run", "none"]),
        ("case qwen3-8b in\n  qwen2*|llama) B=1;;\n  (qwen3*) B=2;;\n  *) B=3\nesac\nrun $B", ["run", "2"]),
        ('for N in a b; do L+=(x=$N); done\nrun "${L[@]}"', ["run", "x=a", "x=b"]),
        ('f() { local A=$1; shift; run $A "$@"; }\nf a b c', ["run", "a", "b", "c"]),
        ("f() {\n  if [ -d x ]; then return 1; fi\n  A=1\n}\nA=1\nf && run $A", ["run", "1"]),
        ('if [ -z "$A" ]; then B=1; exit 1; fi\nrun ${B:-2}', ["run", "2"]),
        ("if [ -d x ]; then A=1; else A=1; fi\nrun $A", ["run", "1"]),
        ('if [ -z "$A" ]; then\n  A=1\nfi\nrun $A', ["run", "1"]),
        ("if [[ -z ${A} ]]; then A=1; fi\nrun $A", ["run", "1"]),
        ('A=2\nif [ -z "$A" ]; then A=1; fi\nrun $A', ["run", "2"]),
    ],
)
def test_words(script: str, expected: list[str]) -> None:
    assert words(script) == expected


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("run $(hostname -I)", "$(hostname -I) is a command, and nothing is run"),
        ("run `whoami`", "`whoami` is a command, and nothing is run"),
        ("if [ -d x ]; then\n  A=1\nfi\nrun $A", "A is set on line 2 under a condition"),
        ("test -d x && A=1\nrun $A", "A is set on line 1 under a condition"),
        ('if [ -z "$A" ]; then B=1; fi\nrun $B', "B is set on line 1 under a condition"),
        ('if [ -z "$A" ]; then A=1; elif [ -d x ]; then A=2; fi\nrun $A', "A is set on line 1 under a condition"),
        ('if [ -z "$A" ] && [ -d x ]; then A=1; fi\nrun $A', "A is set on line 1 under a condition"),
        ("for N in $(ls); do\n  run $N\ndone", "N is set by the loop on line 1"),
        ("read A\nrun $A", "the script sets A while it runs"),
        ("run ${A##*/}", "`${A##*/}` is not worked out"),
        ("f() { if [ -d x ]; then A=1; return; fi; A=2; }\nf\nrun $A", "A is set on line 1 under a condition"),
        ("run $1", "$1 is an argument of the script"),
        ("run $((2 ** 70))", "`$((2 ** 70))` is not worked out"),
        ("run $((1 / 0))", "`$((1 / 0))` is not worked out"),
    ],
)
def test_what_is_not_known_says_why(script: str, reason: str) -> None:
    (command,) = [words for words in read_script(script, SourceMap("run.sh")).commands if words[0].text == "run"]
    assert command[1].unknown == reason


@pytest.mark.parametrize(
    ("script", "place", "what"),
    [
        ("set -x\nrun a='b\nrun c\n", "run.sh:2:7", "the quote that opens here is never closed"),
        ('run a\nrun b="$X\n', "run.sh:2:7", "the quote that opens here is never closed"),
        ("run ${X\n", "run.sh:1:5", "the `${` that opens here is never closed"),
        ("run $((1 + \n", "run.sh:1:5", "the `$((` that opens here is never closed"),
        ("run $(date", "run.sh:1:5", "the `$(` that opens here is never closed"),
        ("A=(a b\n", "run.sh:1:3", "the array that begins here is never closed"),
        ("run " + "${A:-" * 40 + "}" * 40 + "\n", "run.sh:1:", "defaults are nested deeper than 16 levels"),
    ],
)
def test_what_cannot_be_read_is_shown_where_it_begins(refused: Refused, script: str, place: str, what: str) -> None:
    text = refused(f"{script}{RUN}")
    assert f"--> {place}" in text
    assert what in text


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("$(" * 9000 + ")" * 9000, "quotes are nested deeper than 40 levels"),
        ('"$(' * 9000, "quotes are nested deeper than 40 levels"),
        ("if a; then\n" * 5000, "blocks are nested deeper than 40 levels"),
        ("for a in 1 2 3 4 5 6 7 8 9; do " * 8 + "x=1" + "; done" * 8, "more than 20,000 commands would be run"),
        ("A=(a)\n" + 'A+=("${A[@]}")\n' * 40 + "run ${A[@]}", "variables expand to more than"),
    ],
)
def test_scripts_without_measure_are_refused(refused: Refused, script: str, said: str) -> None:
    assert said in refused(f"{script}\n{RUN}")


def test_functions_that_call_one_another_come_to_an_end() -> None:
    assert words("f() { g; f; run a; }\ng() { f; }\nf") == ["run", "a"]


def test_lines_may_end_as_on_windows() -> None:
    text = import_script(RUN.replace(" data", " \\\r\n  data") + "\r\n", "run.sh").text
    assert "path: ./d\n" in text.replace("  # data.train_files", "")


def test_variables_that_double_one_another_end_in_an_error(refused: Refused) -> None:
    doubling = "A=xxxxxxxxxx\n" + "A=$A$A\n" * 40
    assert "variables expand to more than" in refused(f"{doubling}{RUN} trainer.project_name=$A")


@pytest.mark.parametrize(
    ("script", "what"),
    [
        ("", "no command runs verl.trainer.main_ppo"),
        ("# é\n" * 50_000, "longer than 131,072 characters"),
        ("echo hello", "no command runs verl.trainer.main_ppo"),
        ("torchrun -m verl.trainer.fsdp_sft_trainer a.b=1", "verl.trainer.fsdp_sft_trainer is another program of veRL"),
        (f"{RUN}\n{RUN}", "a second command runs veRL here"),
        (f"{RUN} --config-name=ppo_megatron_trainr", "did you mean 'ppo_megatron_trainer'?"),
        (f"{RUN} --config-path=/nowhere --config-name=mine", "name the folder that it is in by --config-dir"),
        (f"{RUN} --config-name my_trainer", "the default '--config-name my_trainer' is unknown"),
        (f"{RUN} loose", "'loose' is not an override"),
        (f"{RUN} \\\n  # said\n  +trainer.total_epochs=3", "trainer.total_epochs is not part of veRL's command"),
    ],
)
def test_what_is_no_run_of_verls_is_refused(refused: Refused, script: str, what: str) -> None:
    assert what in refused(script)


@pytest.mark.parametrize(
    "script",
    [
        "python3 -m verl.trainer.main_ppo",
        "ray job submit --no-wait -- python -m verl.trainer.main_ppo",
        "nohup python /a/main_ppo.py",
        "python3 -m recipe.dapo.main_dapo",
    ],
)
def test_the_program_is_found_behind_others(script: str) -> None:
    assert "algorithm_type: grpo" in import_script(f"{script} algorithm.adv_estimator=grpo &> log &", "run.sh").text
