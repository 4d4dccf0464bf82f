# All paths are relative: make splits at spaces, which the path of this folder may contain.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
ARGS   ?=

# The environment is kept until another PYTHON is given, so `make test` after `make ic PYTHON=python3.12` keeps it.
MADE := $(firstword $(wildcard $(VENV)/.made-with-*))
ifneq ($(origin PYTHON),file)
MADE := $(VENV)/.made-with-$(notdir $(PYTHON))
else ifeq ($(MADE),)
MADE := $(VENV)/.made-with-$(PYTHON)
endif

CORE       := CMakeLists.txt $(shell find csrc cmake -type f 2>/dev/null)
CPP        := $(filter %.h %.inl %.cpp %.cu %.cuh,$(CORE))
SCRIPTS    := $(shell grep -l '^\#!.*python' scripts/* containers/* 2>/dev/null)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# Two pips at the same time would corrupt the environment.
.NOTPARALLEL:

.PHONY: help
help:
	@sed -n 's/^## \?//p' $(MAKEFILE_LIST)

## Start here (each sets up what it needs, once):
##   make ic           train the Image Classification smoke run on synthetic data, and print its score
##   make ewa          the same for Extreme Weather Analytics: synthetic climate years, a detector, its score
##   make lm           the same for a language model, the plug-in in extras/hpcai500-lm (.venv/lm/bin/hpcai500 lm)
##   make test         run every test that needs no root
##   make test-isa     train, and run the kernels' tests, with each older instruction set of this processor
##   make test-site    run the tests of a whole site, which need root
##
## The image (docs/site-guide.md):
##   make image        build build/image/hpcai500-cpu.sif; FLAVOUR=cuda builds the one for GPUs, cuda12 the one for older GPUs
##   make cuda-kernels only build the stage of the CUDA image that compiles our kernels: needs neither GPU nor CUDA
##   make cuda12-kernels the same with CUDA 12, which also serves V100
##   make wheelhouse   only collect the files for building it; a site without network then builds it with scripts/image
##
## For development:
##   make build        compile the C++ core into .venv (Python files need no rebuild)
##   make dali         install DALI (265 MB) and build our operators for it, which accelerator.loader=dali needs
##   make horovod      build Horovod for this torch and MPI (minutes), and install it; repeat it if either changes
##   make docs         build the documentation as a web site in build/docs, and check its links
##   make lint         ruff, mypy, clang-format, zizmor: report only
##   make format       ruff, clang-format: rewrite the files
##   make bench        compare the speed with alternatives (installs them first) and with the recorded results; ARGS=--quick: two minutes
##   make bench-gpu    compare the speed on a CUDA device, and rewrite docs/performance.md; ARGS="--only ic_mixed ewa_step"
##   make fuzz         fuzz the JPEG decoder with libFuzzer (needs clang; docs/fuzzing.md); ARGS="--runs 1000000 jpeg_planes"
##   make lock         resolve constraints.txt again after pyproject.toml changed
##   make clean        remove build files and caches; make distclean also removes .venv and the files of images
##
## Variables:
##   PYTHON=python3.12 the Python for .venv (3.11 to 3.13)
##   FLAVOUR=cuda      the image of `make image` and `make wheelhouse` (cpu, cuda, cuda12)
##   PLUGINS="..."     plug-ins in the image (docs/plugins.md): folders, wheels, or requirements as for pip
##   ARGS="..."        passed on: make ic ARGS="--out runs/first", make test ARGS="tests/core -k crop", which installs what these tests need
##
## As root on Debian and Ubuntu, missing system packages are installed; elsewhere the command to run is printed.
## make always exits with 2 on failure: for the exit codes of hpcai500 call scripts/bootstrap (69) and .venv/bin/hpcai500.

.PHONY: ic
ic: build
	@$(BIN)/hpcai500 ic $(ARGS)

.PHONY: ewa
ewa: build
	@$(BIN)/hpcai500 ewa $(ARGS)

.PHONY: lm
lm: $(VENV)/.lm
	@$(VENV)/lm/bin/hpcai500 lm $(ARGS)

# Where ARGS names tests, only what their files mention of tests/builders/needs.py is installed of what is large.
CHOSEN := $(wildcard $(foreach word,$(filter tests% extras%,$(ARGS)),$(firstword $(subst ::, ,$(word)))))
if-needed = $(if $(if $(CHOSEN),$(shell grep -rhowE --include='*.py' '$1' $(CHOSEN)),all),$(VENV)/$2)

.PHONY: test-setup test
test-setup: $(call if-needed,needs_dali,.dali) build $(VENV)/.tokenizers $(VENV)/.extra-test \
    $(call if-needed,needs_(horovod|mpi|horovod_and_mpi),.horovod) $(call if-needed,needs_cross,.with-cross) \
    $(call if-needed,needs_promtool,.with-metrics) $(VENV)/.with-signing

test: test-setup
	@$(BIN)/python -m pytest -n 2 --dist worksteal --ignore=tests/site $(ARGS)

.PHONY: test-isa
test-isa: build $(VENV)/.extra-test
	@$(BIN)/python scripts/test-isa $(ARGS)

.PHONY: as-root
as-root:
	@[ "$$(id -u)" = 0 ] || { echo "make test-site: needs root to mount file systems and create networks; run: sudo make test-site" >&2; exit 69; }

.PHONY: test-site
test-site: as-root build $(VENV)/.extra-test $(VENV)/.extra-harness $(VENV)/.horovod $(VENV)/.with-signing $(VENV)/.with-site image
	@unshare --mount $(BIN)/python -m pytest -n 4 --dist loadfile tests/site $(ARGS)

.PHONY: lint
lint: $(VENV)/.extra-dev
	@$(BIN)/ruff check . $(SCRIPTS)
	@$(BIN)/ruff format --check . $(SCRIPTS)
	@$(BIN)/mypy
	@$(if $(CPP),$(BIN)/clang-format --dry-run -Werror $(CPP))
	@$(BIN)/zizmor --offline --quiet .github/workflows

.PHONY: docs
docs: $(VENV)/.extra-docs
	@$(BIN)/mkdocs build -q
	@echo 'documentation: build/docs/index.html'

.PHONY: format
format: $(VENV)/.extra-dev
	@$(BIN)/ruff check --fix-only . $(SCRIPTS)
	@$(BIN)/ruff format . $(SCRIPTS)
	@$(if $(CPP),$(BIN)/clang-format -i $(CPP))

.PHONY: bench
bench: $(VENV)/.dali $(VENV)/.extra-benchmark $(VENV)/.horovod $(VENV)/.torchvision
	@$(BIN)/python benchmarks/cpu.py $(ARGS)

# Without a device nothing is downloaded. The page is also written if a part fails, with the results until then.
.PHONY: bench-gpu
bench-gpu: build
	@$(BIN)/python benchmarks/gpu/run.py --check $(ARGS)
	@$(MAKE) --no-print-directory $(VENV)/.dali
	@$(BIN)/python benchmarks/gpu/run.py $(ARGS); status=$$?; \
	[ $$status -gt 1 ] || $(BIN)/python benchmarks/gpu/performance_page.py docs/performance.md; exit $$status

.PHONY: fuzz
fuzz: $(VENV)/.extra-test
	@$(BIN)/python scripts/fuzz $(ARGS)

.PHONY: lock
lock:
	@$(PYTHON) scripts/lock

.PHONY: build
build: $(VENV)/.core

$(MADE):
	@PYTHON='$(PYTHON)' scripts/bootstrap
	@scripts/environment '$(PYTHON)' $(VENV)
	@rm -f $(VENV)/.made-with-*
	@touch $@

# Torch is installed while the core is compiled: each takes about the same time.
$(VENV)/.runtime: $(MADE) constraints.txt pyproject.toml
	@scripts/install $(VENV) build
	@scripts/compile $(VENV) scripts/install $(VENV) runtime
	@touch $@

# Without build isolation: pip's temporary environments have a new path each time, so that CMake would compile everything again.
compile = echo "hpcai500: compiling csrc/" >&2 \
	&& $(BIN)/python -m pip install -qq --disable-pip-version-check --no-build-isolation --no-deps --editable . \
	&& touch $(VENV)/.core

$(VENV)/.core: $(VENV)/.runtime $(CORE)
	@$(compile)

$(VENV)/.extra-dali: $(VENV)/.runtime
	@scripts/install $(VENV) dali dali-build
	@touch $@

.PHONY: dali
dali: $(VENV)/.dali

# Our operators are built with the core if DALI is installed. A core that was compiled before is built again, which only
# compiles the operators; in an environment without a core, DALI is installed first.
$(VENV)/.dali: $(VENV)/.extra-dali $(VENV)/.core
	@[ ! $(VENV)/.extra-dali -nt $(VENV)/.core ] || { $(compile); }
	@touch $@

$(VENV)/.extra-%: $(VENV)/.runtime
	@scripts/install $(VENV) $*
	@touch $@

# A rival, where only it is looked for: its wheel may be built for another torch, and then its own operators do not load.
$(VENV)/.torchvision: $(VENV)/.runtime
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps --upgrade --target $(VENV)/torchvision \
	    "torchvision==$$($(BIN)/python -c 'import torch; print(f"0.{int(torch.__version__.split(chr(46))[1]) + 15}.*")')" \
	    || echo 'hpcai500: torchvision could not be installed: its comparison is left out' >&2
	@touch $@

# Its other requirements are for downloading tokenizers, which nothing here does.
$(VENV)/.tokenizers: $(VENV)/.runtime
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps 'tokenizers>=0.20,<1'
	@touch $@

# An environment of its own that sees all of .venv: what plug-ins are installed must not change what tests find.
LM := extras/hpcai500-lm
$(VENV)/.lm: $(shell find $(LM) -name '*.py' -o -name '*.t*ml' 2>/dev/null) scripts/plugin | $(VENV)/.core
	@scripts/plugin $(VENV) $(VENV)/lm $(LM)
	@touch $@

# Without MPI, and without root to install it, Horovod is built with Gloo only: bootstrap has reported what is missing.
define get_horovod
@PYTHON='$(BIN)/python' scripts/bootstrap --with mpi || [ $$? = 69 ]
@scripts/install $(VENV) horovod
@scripts/horovod $(VENV)
@touch $(VENV)/.horovod
endef

.PHONY: horovod
horovod: build
	$(get_horovod)

$(VENV)/.horovod: $(VENV)/.runtime scripts/horovod scripts/horovod-source
	$(get_horovod)

FLAVOUR    ?= cpu
PLUGINS    ?=
IMAGES     := build/image
PACKAGES   := containers/packages
CONTAINERS := $(shell find containers -maxdepth 1 -type f 2>/dev/null)
SOURCES    := $(CORE) $(shell find docs hpcai500 recipes -type f -not -name '*.pyc' 2>/dev/null) pyproject.toml constraints.txt

PLUGIN_WORDS := $(foreach one,$(PLUGINS),'$(one)')
# Of those plug-ins that are folders or wheels.
PLUGIN_FILES := $(foreach one,$(PLUGINS),$(if $(wildcard $(one)),$(shell find $(one) -type f -not -path '*/build/*' -not -path '*/*.egg-info/*' -not -name '*.pyc')))

WHEELS     := $(addprefix scripts/,wheelhouse cuda12-compiler build-wheels horovod horovod-source) containers/build-wheels containers/lock-wheels

.PHONY: image
image: $(IMAGES)/hpcai500-$(FLAVOUR).sif

# The part of the CUDA images that can be built without a torch with CUDA: their kernels.
.PHONY: cuda-kernels cuda12-kernels
cuda-kernels cuda12-kernels: %-kernels: $(IMAGES)/base-build.squashfs | $(VENV)/.extra-horovod
	@$(BIN)/python scripts/wheelhouse $* $(IMAGES)/wheelhouse-$* build
	@scripts/image $* $(IMAGES) kernels

.PHONY: wheelhouse
wheelhouse: $(IMAGES)/base-$(FLAVOUR).squashfs $(addprefix $(IMAGES)/wheelhouse-$(FLAVOUR)/,.complete .plugins)

$(IMAGES)/hpcai500-%.sif: $(IMAGES)/base-%.squashfs $(IMAGES)/wheelhouse-%/.plugins $(CONTAINERS) scripts/image scripts/apptainer
	@scripts/image $* $(IMAGES)

$(IMAGES)/base-build.squashfs: $(addprefix $(PACKAGES)/,runtime build) scripts/base | $(VENV)/.with-image
	@scripts/base $@ $(addprefix $(PACKAGES)/,runtime build)

$(IMAGES)/base-cpu.squashfs: $(PACKAGES)/runtime scripts/base | $(VENV)/.with-image
	@scripts/base $@ $(PACKAGES)/runtime

$(IMAGES)/base-cuda.squashfs $(IMAGES)/base-cuda12.squashfs: $(addprefix $(PACKAGES)/,runtime cuda) scripts/base | $(VENV)/.with-image
	@scripts/base $@ $(addprefix $(PACKAGES)/,runtime cuda)

$(IMAGES)/wheelhouse-%/.complete: $(SOURCES) $(WHEELS) $(IMAGES)/base-build.squashfs | $(VENV)/.extra-horovod
	@$(BIN)/python scripts/wheelhouse $* $(@D)
	@scripts/build-wheels $(IMAGES)/base-build.squashfs $(@D) $*
	@touch $@

# Only another list of plug-ins changes it.
$(IMAGES)/plugins-$(FLAVOUR): always
	@mkdir -p $(@D)
	@echo "$(PLUGIN_WORDS)" | cmp -s - $@ || echo "$(PLUGIN_WORDS)" >$@

$(IMAGES)/wheelhouse-%/.plugins: $(IMAGES)/wheelhouse-%/.complete $(IMAGES)/plugins-$(FLAVOUR) $(PLUGIN_FILES)
	@$(BIN)/python scripts/wheelhouse $* $(@D) plugins $(PLUGIN_WORDS)
	@touch $@

.PHONY: always
always:

# Without root to install the tools, the kernels for 64-bit Arm are not tested, and files for Prometheus only by our own
# rules: bootstrap has reported what is missing.
$(VENV)/.with-cross $(VENV)/.with-metrics: $(VENV)/.with-%: $(MADE)
	@PYTHON='$(BIN)/python' scripts/bootstrap --with $* || [ $$? = 69 ]
	@touch $@

$(VENV)/.with-%: $(MADE)
	@PYTHON='$(BIN)/python' scripts/bootstrap --with $*
	@touch $@

.PHONY: clean
clean:
	find build -mindepth 1 -maxdepth 1 -not -name image -exec rm -rf {} + 2>/dev/null || true
	rm -rf dist .cache .hypothesis $(VENV)/.core
	find . -path ./$(VENV) -prune -o -type d \( -name __pycache__ -o -name '.*_cache' \) -prune -exec rm -rf {} +

.PHONY: distclean
distclean: clean
	rm -rf $(VENV) build
