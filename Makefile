# `make demo` and `make test` work on a fresh machine. Both set up all they need below this folder.
PYTHON ?= python3
VENV := .venv
HUB5 := .venv-hub5
CACHE := .cache
BIN := $(VENV)/bin
PIP_OPTIONS := --quiet --disable-pip-version-check

# Container images often set it. Each of the processes that tests start would then compile all modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help lab demo test test-in-one test-others test-slow test-gpu kube test-kube node test-node wheel check \
  soak soak-processes soak-worlds bench mutants clean docs pictures
help:  ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(VENV)/.demo: pyproject.toml .ci/constraints.txt
	@echo 'Setting up $(VENV) for the demo: a few minutes, most of it downloads, which pip lists.'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --disable-pip-version-check --constraint .ci/constraints.txt --editable '.[demo]'
	touch $@

$(VENV)/.ready: $(VENV)/.demo
	@echo 'Setting up $(VENV) for tests and documentation: about two minutes.'
	$(BIN)/pip install $(PIP_OPTIONS) --constraint .ci/constraints.txt --editable '.[test,docs]'
	touch $@

# jsonschema from 4.25 on needs 1.5 s of CPU at each start of a hub or a server; .ci/constraints.txt has an older one, too.
$(HUB5)/.ready: pyproject.toml
	@echo 'Setting up $(HUB5), with JupyterHub 5.5: about a minute.'
	$(PYTHON) -m venv $(HUB5)
	$(HUB5)/bin/pip install $(PIP_OPTIONS) 'jupyterhub==5.5.*' 'jsonschema<4.25' --editable '.[hub,lab]' jupyterlab
	touch $@

$(CACHE)/proxy/.ready: $(VENV)/.demo
	$(BIN)/python -m jupyter_gpu_quota.demo.proxy $(CACHE)/proxy
	touch $@

# The JupyterLab extension and the scripts of the pages. npm and the builder come from the environment where the machine has no Node.
LAB := jupyter_gpu_quota/labextension/package.json
PAGES := jupyter_gpu_quota/api/pages/static/built/pages.js
LAB_SOURCES := $(shell find labextension -type f -not -path '*/node_modules/*' -not -path '*/lib/*' -not -name '*.tsbuildinfo' \
  -not -path '*/__pycache__/*')

labextension/node_modules/.ready: labextension/package-lock.json | $(VENV)/.demo
	@echo 'Installing what builds the JupyterLab extension: half a minute, most of it downloads.'
	@cd labextension && PATH=$(abspath $(BIN)):$$PATH npm ci --silent --ignore-scripts --no-fund --no-audit
	touch $@

# Its warnings about licences of our own packages concern nobody who runs the demo: its output is printed if it fails.
BUILD_LOG := $(abspath $(CACHE))/build.log
BUILD_LAB = mkdir -p $(dir $(BUILD_LOG)) && cd labextension && \
  { PATH=$(abspath $(BIN)):$$PATH npm run build > $(BUILD_LOG) 2>&1 || { cat $(BUILD_LOG); exit 1; }; }

$(LAB): labextension/node_modules/.ready $(LAB_SOURCES)
	@echo 'Building the JupyterLab extension and the scripts of the pages: half a minute.'
	@$(BUILD_LAB)

$(PAGES): $(LAB)
	@test -e $@ || { $(BUILD_LAB); }
	touch $@

$(VENV)/.lab: $(LAB) $(PAGES) $(VENV)/.demo
	mkdir -p $(VENV)/share/jupyter/labextensions
	ln -sfn $(abspath $(dir $(LAB))) $(VENV)/share/jupyter/labextensions/jupyter-gpu-quota
	touch $@

lab: $(VENV)/.lab  ## build the JupyterLab extension and the scripts of the pages

# exec: make sends SIGTERM to the process that it started; a shell in between would not pass it on.
demo: $(VENV)/.demo $(CACHE)/proxy/.ready $(VENV)/.lab  ## run the demo on a real hub; ONCE=1 ends after the story, LOGS=FOLDER keeps logs
	exec env GPU_QUOTA_PROXY_CACHE=$(abspath $(CACHE)/proxy) $(BIN)/jupyter-gpu-quota demo $(if $(ONCE),--once) $(if $(LOGS),--logs $(LOGS))

TEST_READY := $(VENV)/.ready $(HUB5)/.ready $(CACHE)/proxy/.ready $(VENV)/.lab
PYTEST = GPU_QUOTA_HUB5_PYTHON=$(abspath $(HUB5)/bin/python) GPU_QUOTA_PROXY_CACHE=$(abspath $(CACHE)/proxy) \
  $(BIN)/python -m pytest --durations 25

ifdef TESTS
test: $(TEST_READY)
	$(PYTEST) $(TESTS)
else
test: $(TEST_READY)  ## run the tests, three processes at a time (TESTS=tests/core: only these, in one)
	$(MAKE) --no-print-directory --keep-going --jobs 2 test-in-one test-others
	@echo 'Left out: the tests marked slow (make test-slow) and soak (make soak), tests/kube (make test-kube), tests/node (make test-node).'
endif

# The tests that start hubs, kill databases or are timed run one after another. The others take as long in two processes.
IN_ONE := tests/hub tests/labextension tests/gpu tests/demo tests/soak tests/store
ELSEWHERE := tests/kube tests/node
SPREAD := --numprocesses 2 --dist loadfile

test-in-one: $(TEST_READY)
	bash -o pipefail -c "$(PYTEST) $(IN_ONE) 2>&1 | sed --unbuffered 's/^/[in one] /'"

test-others: $(TEST_READY)
	bash -o pipefail -c "$(PYTEST) $(SPREAD) tests $(IN_ONE:%=--ignore %) $(ELSEWHERE:%=--ignore %) 2>&1 | sed --unbuffered 's/^/[others] /'"

test-slow: $(TEST_READY)  ## run the long tests that `make test` leaves out, in three processes
	$(PYTEST) --numprocesses 3 --dist loadfile -m slow tests

test-gpu: $(VENV)/.ready  ## run the GPU tests: on the fake library, and on this machine's GPU if it has one
	$(BIN)/python -m pytest -v -rs -m 'not soak' tests/gpu

kube:  ## build the Kubernetes control plane of the tests, once: 10 to 40 minutes, Go is needed
	$(PYTHON) tests/kube/build.py

test-kube: $(VENV)/.ready $(CACHE)/proxy/.ready  ## run the tests on a real Kubernetes API server (make kube builds it)
	$(PYTEST) tests/kube tests/backends/kubernetes

node: $(VENV)/.ready  ## build a kubelet and a container runtime for the tests, once, beside the control plane of make kube
	nice -n 10 $(BIN)/python -m tests.node.build

test-node: $(VENV)/.ready  ## run jobs as pods of a real kubelet on this machine: root is needed (make node builds it)
	$(PYTEST) -rs tests/node

wheel: $(VENV)/.lab  ## build the wheel, which the images install, into dist
	$(BIN)/pip wheel $(PIP_OPTIONS) --no-deps --wheel-dir dist .

check: $(VENV)/.ready  ## check format, lint, types and laws
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy --strict jupyter_gpu_quota
	$(BIN)/python -m pytest -q tests/laws

WORLD_SEED ?= 1

soak: $(TEST_READY)  ## the long runs, about two hours: kills, 50 demos, fuzzing, random worlds (others: WORLD_SEED=n)
	-$(BIN)/pip install $(PIP_OPTIONS) --only-binary atheris --editable '.[fuzz]'
	$(MAKE) --no-print-directory --keep-going --jobs 2 soak-processes soak-worlds

WORLDS_IN := tests/core tests/outside tests/traces

soak-processes: $(TEST_READY)
	$(PYTEST) -m 'soak or not soak' tests/soak
	GPU_QUOTA_WORLDS=1 $(PYTEST) -m hypothesis tests --ignore tests/soak $(WORLDS_IN:%=--ignore %)

# The worlds need all processors for two hours: the processes beside them, whose load is measured, come first. A test of
# minutes may then wait an hour for a processor. Every run plays the same worlds, so that a
# new failure comes from the change; WORLD_SEED=n draws others, to look for faults.
soak-worlds: $(TEST_READY)
	nice -n 15 env GPU_QUOTA_WORLDS=10000 GPU_QUOTA_WORLD_SEED=$(WORLD_SEED) $(PYTEST) --hypothesis-seed $(WORLD_SEED) \
	  --numprocesses 2 --dist worksteal --timeout 3600 -m 'soak or not soak' $(WORLDS_IN)

mutants: $(VENV)/.ready  ## break the core on purpose; a test must fail each time
	$(BIN)/python -m tests.core.mutants

bench: $(VENV)/.ready $(CACHE)/proxy/.ready  ## measure the figures (hours; ONLY="openb bank", QUICK=1), store them in docs/figures.json
	GPU_QUOTA_PROXY_CACHE=$(abspath $(CACHE)/proxy) $(BIN)/python -m tests.benchmarks \
		$(if $(ONLY),--only $(ONLY)) $(if $(QUICK),--quick); status=$$?; $(BIN)/python docs/_scripts/figures.py; exit $$status

docs: $(VENV)/.ready  ## generate the reference pages and the pictures, build the documentation
	$(BIN)/python docs/_scripts/reference.py
	$(BIN)/python docs/_scripts/chart_settings.py
	$(BIN)/python docs/_scripts/queue_pictures.py
	$(BIN)/sphinx-build -W -q -b html docs docs/_build/html

pictures: $(TEST_READY)  ## make the pictures of README and how-to pages again, in Chromium on a real hub
	for made in tests.labextension.picture tests.labextension.screencast tests.docs.picture; do \
	  GPU_QUOTA_PROXY_CACHE=$(abspath $(CACHE)/proxy) $(BIN)/python -m $$made || exit 1; done

clean:  ## remove everything that make created
	rm -rf $(VENV) $(HUB5) $(CACHE) jupyter_gpu_quota/labextension $(dir $(PAGES)) labextension/node_modules build dist docs/_build
