"""Kinds of faults beside those that `scenario` draws: each is one file, one line below, and changes no other world.

kind                what a kind of fault is: how it is drawn, what it changes, and the oracles that it brings
bad_disks           disks that are full, read-only or failing for a while
branching_clients   clients that repeat questions and branch conversations
clocks              wall clocks that are set back, or forward and then back
cut_logs            a log that is shortened while everything is down, with some of those who remember it
colliding_keys      one key for several commands, and the same command again
foreigners          writers that are no part of the run: they answer what others were asked, and write as its roles
few_kept            trainers that keep few weights, and go back to what they retired
several_runs        a fork beside its parent, under one daemon
slow_starts         workers that are started late, or whose start hangs
folders_put_back    folders of experiments that are put back from an older copy, or are gone
histories_put_back  served histories that are put back from an older copy, or are gone
kept_files          experiments that are archived, restored and removed after their end
lost_ranks          trainers of several ranks, which die, are late, and drift apart
long_pauses         pauses that last until the workers are released
given_up            experiences that their owner gives up
moved               experiments that are exported and imported elsewhere, under way or at their end
drawn_rows          tasksets whose rows are drawn, by their columns or by rewards
piped               experience pipelines that drop, change and fail
queued              tasks that are added while the experiment runs, and whose end is told
moody_policies      a third party's policy that raises for a while
small_appends       logs of which an append takes a few records
served              worlds that answer strangers and train on what they say
strangers           explorers of somebody else's, that refuse
two_logs            a copy of the log that is served beside it
vanished_weights    announced weights that somebody removes
zombie_files        trainers that stand still within an operation on files, are replaced, and wake

A kind's chances come from a source of their own (its name and the seed), so that worlds without it stay what they
were, turn by turn. What it draws lies in `Scenario.extras` under its name.
"""

from simulator.kinds.bad_disks import BadDisks
from simulator.kinds.branching_clients import BranchingClients
from simulator.kinds.clocks import Clocks
from simulator.kinds.colliding_keys import CollidingKeys
from simulator.kinds.cut_logs import CutLogs
from simulator.kinds.drawn_rows import DrawnRows
from simulator.kinds.few_kept import FewKept
from simulator.kinds.folders_put_back import FoldersPutBack
from simulator.kinds.foreigners import Foreigners
from simulator.kinds.given_up import GivenUp
from simulator.kinds.histories_put_back import HistoriesPutBack
from simulator.kinds.kept_files import KeptFiles
from simulator.kinds.kind import Kind
from simulator.kinds.long_pauses import LongPauses
from simulator.kinds.lost_ranks import LostRanks
from simulator.kinds.moody_policies import MoodyPolicies
from simulator.kinds.moved import Moved
from simulator.kinds.piped import Piped
from simulator.kinds.queued import Queued
from simulator.kinds.served import Served
from simulator.kinds.several_runs import SeveralRuns
from simulator.kinds.slow_starts import SlowStarts
from simulator.kinds.small_appends import SmallAppends
from simulator.kinds.strangers import Strangers
from simulator.kinds.two_logs import TwoLogs
from simulator.kinds.vanished_weights import VanishedWeights
from simulator.kinds.zombie_files import ZombieFiles

KINDS: tuple[Kind, ...] = (
    Clocks(),
    CollidingKeys(),
    GivenUp(),
    MoodyPolicies(),
    SmallAppends(),
    Strangers(),
    VanishedWeights(),
    CutLogs(),
    ZombieFiles(),
    SlowStarts(),
    FewKept(),
    SeveralRuns(),
    Served(),
    Queued(),
    Moved(),
    BadDisks(),
    KeptFiles(),
    LongPauses(),
    Foreigners(),
    HistoriesPutBack(),
    FoldersPutBack(),
    LostRanks(),
    BranchingClients(),
    TwoLogs(),
    DrawnRows(),
    Piped(),
)
