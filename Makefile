# The OneDL stack in a virtual environment of its own. Python 3.11:
#   make demo PYTHON=python3.11
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# The stack of OpenMMLab in another one.
OPENMMLAB ?= .venv-openmmlab
# OneDL's with MMPretrain.
MMPRETRAIN ?= .venv-mmpretrain
# OneDL's with MMDetection.
MMDET ?= .venv-mmdet
# OneDL's with Lightning, accelerate and transformers.
FRAMEWORKS ?= .venv-frameworks
# torch, numpy, pytest and hypothesis alone.
CORE ?= .venv-core
# Of pytest:
#   make test ARGS="-k Neyman tests/test_plans"
ARGS ?=
# All tests run in two processes, each of which takes whole files, in order:
# the tests of a file share trainings, and the longest files are the first.
# Those that ARGS chooses run in one, which starts sooner.
PARALLEL = $(if $(ARGS),,-n 2 --dist loadfile --no-loadscope-reorder)

# What needs no MMEngine.
CORE_TESTS = tests/test_plans tests/test_stream tests/test_scores tests/test_run

.PHONY: demo test test-core test-openmmlab test-mmpretrain test-mmdet test-frameworks coverage lint docs

demo: $(VENV)/installed
	$(BIN)/python -m mmib demo

test: $(VENV)/installed-test
	$(BIN)/python -m pytest $(PARALLEL) $(ARGS)

test-core: $(CORE)/installed
	$(CORE)/bin/python -m pytest $(if $(ARGS),$(ARGS),$(CORE_TESTS))

test-openmmlab: $(OPENMMLAB)/installed
	$(OPENMMLAB)/bin/python -m pytest $(PARALLEL) $(ARGS)

# What needs MMPretrain, and no more.
test-mmpretrain: $(MMPRETRAIN)/installed
	$(MMPRETRAIN)/bin/python -m pytest -m "mmpretrain and not slow and not gpu" $(ARGS)

# The same of MMDetection.
test-mmdet: $(MMDET)/installed
	$(MMDET)/bin/python -m pytest -m "mmdet and not slow and not gpu" $(ARGS)

coverage: $(VENV)/installed-test
	$(BIN)/python -m pytest --cov --cov-report=term $(ARGS)

lint: $(VENV)/installed-test
	$(BIN)/flake8 mmib mmib_cli tools benchmarks tests configs docs examples setup.py
	$(BIN)/isort --check-only --diff mmib mmib_cli tools benchmarks tests docs examples setup.py
	$(BIN)/yapf --recursive --parallel --diff mmib mmib_cli tools benchmarks tests configs docs examples setup.py
	$(BIN)/mypy

docs: $(VENV)/installed-docs
	$(BIN)/sphinx-build -W --keep-going -c docs . build/docs

# This exact pin: a range would fetch another build of torch.
$(VENV)/installed: setup.py
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install torch==2.13.0
	$(BIN)/python -m pip install -e '.[onedl,report]'
	touch $@

$(VENV)/installed-test: $(VENV)/installed
	$(BIN)/python -m pip install -e '.[onedl,test]'
	touch $@

$(VENV)/installed-docs: $(VENV)/installed
	$(BIN)/python -m pip install -e '.[docs]'
	touch $@

$(CORE)/installed: setup.py
	$(PYTHON) -m venv $(CORE)
	$(CORE)/bin/python -m pip install torch==2.13.0
	$(CORE)/bin/python -m pip install -e . pytest==9.2.0 hypothesis==6.170.15
	touch $@

# Compiles mmcv, 11 minutes on 2 cores. It imports pkg_resources, which
# setuptools has dropped.
$(OPENMMLAB)/installed: setup.py
	$(PYTHON) -m venv $(OPENMMLAB)
	$(OPENMMLAB)/bin/python -m pip install torch==2.13.0 'setuptools<81' wheel
	$(OPENMMLAB)/bin/python -m pip install --no-build-isolation -e '.[openmmlab,test]'
	touch $@

# The wheels of torchvision are compiled for torch with CUDA, 6 GB with its
# libraries. MMPretrain needs what is written in Python there, the transforms,
# which works beside torch for CPUs without the file that describes compiled
# operations. Where one of these is called, such as `nms`, it says that it
# couldn't be loaded.
$(MMPRETRAIN)/installed: setup.py
	$(PYTHON) -m venv $(MMPRETRAIN)
	$(MMPRETRAIN)/bin/python -m pip install torch==2.13.0
	$(MMPRETRAIN)/bin/python -m pip install --no-deps torchvision==0.28.0
	cp /dev/null $(MMPRETRAIN)/lib/python3.*/site-packages/torchvision/_meta_registrations.py
	$(MMPRETRAIN)/bin/python -m pip install -e '.[onedl,mmpretrain,test]'
	touch $@

# What needs Lightning, accelerate or transformers, and no more.
test-frameworks: $(FRAMEWORKS)/installed
	$(FRAMEWORKS)/bin/python -m pytest $(if $(ARGS),$(ARGS),tests/test_integrations tests/test_examples)

$(FRAMEWORKS)/installed: setup.py
	$(PYTHON) -m venv $(FRAMEWORKS)
	$(FRAMEWORKS)/bin/python -m pip install torch==2.13.0
	$(FRAMEWORKS)/bin/python -m pip install -e '.[onedl,test,lightning,transformers,cluster,examples]'
	touch $@

# Its requirements bring another numpy and, for augmentations that mmib doesn't
# use, numba. What it imports is named here. The operations of mmcv that it
# imports too are stood in for by the tests.
$(MMDET)/installed: setup.py
	$(PYTHON) -m venv $(MMDET)
	$(MMDET)/bin/python -m pip install torch==2.13.0
	$(MMDET)/bin/python -m pip install -e '.[onedl,test]'
	$(MMDET)/bin/python -m pip install --no-deps onedl-mmdetection==3.5.1 pycocotools==2.0.11 shapely==2.2.0 terminaltables==3.1.10 six==1.17.0 tqdm==4.70.1 imaug==0.4.3 scikit-image==0.26.0 lazy-loader==0.6 tifffile==2026.3.3 imageio==2.38.1
	touch $@
