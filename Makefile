# Shortcuts for people who work on this repository; README.md has the commands that need no make.
.PHONY: test lint demo bench cuda-standin
PYTHON ?= .venv/bin/python

test:
	$(PYTHON) -m pytest -q -n 2

lint:
	$(PYTHON) -m pytest -q tests/repository/test_lint.py

demo:
	.venv/bin/ogc-plan "$$($(PYTHON) -m models.light resnet50)" --batch 64 --budget 60%

bench:
	$(PYTHON) -m models.plan_benchmark -o models/results/plans.json

cuda-standin:
	$(PYTHON) -m tests.cuda_standin
