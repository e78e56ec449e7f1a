# The commands of this workshop; `just` lists them. Each is what CI runs, on the tree as it is.

python := env_var_or_default("PYTHON", "python3")

# List the commands
default:
    @just --list

# Install for development: rebuilds the kernels, keeps the Python files in place
build:
    {{python}} -m pip install -c constraints.txt scikit-build-core nanobind numpy
    {{python}} -m pip install --no-build-isolation -c constraints.txt -e '.[dev]'

# Style and types
check:
    {{python}} -m ruff check .
    {{python}} -m mypy
    {{python}} tools/tables.py --check
    {{python}} tools/lines

# Under a minute: kernels, codes, files, engines and the command line
quick *ARGS:
    OMP_NUM_THREADS=1 {{python}} -m pytest -m quick {{ARGS}}

# The tests, with the best instruction set of this machine (HEADLONG_ISA=portable forces another)
test *ARGS:
    OMP_NUM_THREADS=1 {{python}} -m pytest {{ARGS}}

# GGUF models on llama.cpp: builds llama-cpp-python (five minutes), then the tests that need it
llama *ARGS:
    {{python}} -m pip install -c constraints.txt llama-cpp-python
    OMP_NUM_THREADS=1 {{python}} -m pytest tests/integrations/llama_cpp {{ARGS}}

# OpenVINO and ONNX Runtime by optimum, in the versions that go together (not transformers' newest), then the tests that need them
hosts *ARGS:
    {{python}} -m pip install 'optimum-intel==1.27.0' 'optimum-onnx==0.1.0' 'transformers==4.57.6' openvino nncf onnx onnxruntime onnx-ir
    OMP_NUM_THREADS=1 {{python}} -m pytest -n 0 tests/integrations/graphs {{ARGS}}

# The exhaustive matrix: every instruction set of this machine, as CI runs it
test-all *ARGS:
    HEADLONG_TEST_ALL=1 OMP_NUM_THREADS=1 {{python}} -m pytest {{ARGS}}

# Faults planted one after the other, each of which the default run has to notice; --build "COMMAND" plants those in C++, too
faults *ARGS:
    OMP_NUM_THREADS=1 {{python}} tools/plant_faults.py {{ARGS}}

# Fill the generated blocks of README.md and docs/ from results/ and the program itself
docs:
    {{python}} tools/tables.py

# Screenshots of the site, the report and the demo's page, to be looked at (needs Chromium)
pictures FOLDER="artefacts":
    HEADLONG_ARTEFACTS={{FOLDER}} {{python}} -m pytest -q -n 0 -k "screenshots or pictures" tests/test_docs.py tests/report

# A million damaged files for the readers
fuzz INPUTS="1000000" SEED="1":
    {{python}} tests/helpers/fuzz_readers.py --inputs {{INPUTS}} --seed {{SEED}}

# Random layers and calls, each in a process with limits, against float64; goes on where storm.json ends
storm CASES="2000":
    OMP_NUM_THREADS=1 {{python}} tests/storm/storm.py --cases {{CASES}} --jobs 2 --json storm.json

# The storm's layers and calls on a GPU
storm-device SECONDS="50":
    {{python}} tests/storm/on_device.py --seconds {{SECONDS}} --jobs 6 --json storm-device.json

# Damaged files of every kind of engine: refused where verified, and never the end of the process
storm-damage SECONDS="200":
    {{python}} tests/storm/damage.py --seconds {{SECONDS}} --json storm-damage.json

# Sixteen threads, engines that come and go, a fork a second: memory flat, no wrong answer
soak SECONDS="3600":
    OMP_NUM_THREADS=1 {{python}} tests/storm/soak.py --seconds {{SECONDS}} --json soak.json

# Native code under a sanitizer (address: with undefined behaviour; thread: data races), over the tests of tools/sanitize.sh
sanitize KIND="address" *TESTS:
    PYTHON={{python}} tools/sanitize.sh {{KIND}} {{TESTS}}

# Every kernel of this processor beside the reference, without Python, on fuzzed inputs
kernels *ROUNDS:
    PYTHON={{python}} tools/kernels.sh {{ROUNDS}}

# Time every engine and the rivals that are installed; -o FILE keeps the run
bench *ARGS:
    headlong bench {{ARGS}}

# Every row of a layer that people have, from nothing: its package or data, or for ptb-lstm half an hour of training first
rows LAYER *ARGS:
    {{ if LAYER == "ptb-lstm" { python + " -m studies train ptb-lstm --option training.epochs=6 && " + python + " -m studies harvest runs/ptb-lstm --out runs/harvest/ptb-lstm" } else { "true" } }}
    {{ if LAYER =~ "^(gemma|qwen|whisper|bergamot)$" { python + " benchmarks/fetch_models.py " + LAYER } else { "true" } }}
    {{python}} benchmarks/{{ if LAYER =~ "^(catalogue|movielens)" { "recommender" } else { "dense_products" } }}.py --layer {{ if LAYER == "ptb-lstm" { "runs/harvest/ptb-lstm" } else { LAYER } }} {{ARGS}}

# AArch64 under emulation, from nothing: tool chain, interpreter, kernels and tests of levels on neon and dotprod
arm *WHAT="slice":
    PYTHON={{python}} tools/arm.sh {{WHAT}}

# A release without publishing it: sdist, wheels, each Python in a fresh environment, twine check
release *PYTHONS="python3.11 python3.12":
    {{python}} tools/release rehearse dist {{PYTHONS}}
