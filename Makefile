# make demo    the whole pipeline on this machine, nothing needed but Python; KEEP=1 leaves it running,
#              DATABASE_URL=... RABBITMQ_URL=... (or OUTBOX_BROKER=postgres) runs it against given servers
# make test    every test, on real PostgreSQL and RabbitMQ; ARGS="-k words" narrows it
# make check   lint, format, types, import floors
# make docs    the documentation's site, into build/site; ARGS=serve shows it, and what is changed, at localhost:8000
# make bench   NAME=relay | relay-noisy | relay-scale | latency | takeover | idle | consumer | brokers | fairness | scheduler | memory | lanes | import
#
# The first call makes .venv; later ones reuse it until a pyproject.toml or constraints.txt changes.

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; exit; }; done)
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# Each process is a distribution of its own, which no registry is asked for while its folder is named beside the extras.
INSTALLED := pyproject.toml relay/pyproject.toml consumer/pyproject.toml constraints.txt
PROCESSES := -e ./relay -e ./consumer

.PHONY: help demo test check docs bench
.DEFAULT_GOAL := help

help:
	@sed -n 's/^# \{0,1\}//; 1,7p' Makefile

# The servers' addresses reach these commands by the environment, where `ps` does not show a password;
# make itself exports a variable that was given on its command line.
demo: .venv/.demo
	@echo "demo: migrate, emit, relay, consume and count, with kills on the way"
	@$(BIN)/outbox demo $(if $(KEEP),--keep) $(ARGS)

test: .venv/.dev
	@echo "test: every test, on real PostgreSQL and RabbitMQ"
	@$(BIN)/python -m tests.support.provide
	@$(BIN)/python -m pytest -n 2 --dist loadfile $(ARGS)

check: .venv/.dev
	@echo "check: lint, format, types, import floors"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

docs: .venv/.dev
	@echo "docs: the documentation's site, into build/site"
	@$(BIN)/python -m reference
	@$(BIN)/zensical $(if $(ARGS),$(ARGS),build --strict)

bench: .venv/.dev
	@echo "bench: $(if $(NAME),$(NAME),want NAME=relay | relay-noisy | relay-scale | latency | takeover | idle | consumer | brokers | fairness | scheduler | memory | lanes | import)"
	@$(if $(NAME),,exit 64;) $(BIN)/python -m benchmarks $(NAME) $(ARGS)

.venv/bin/python:
	@if [ -z "$(PYTHON)" ]; then echo "No Python 3.11 or newer found: install one, or name it: make PYTHON=/path/to/python3" >&2; exit 69; fi
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "$(PYTHON) cannot make environments: on Debian and Ubuntu run 'apt-get install python3-venv', then make again." >&2; exit 69; }
	@$(PYTHON) -m venv .venv

.venv/.demo: $(INSTALLED) | .venv/bin/python
	@echo "installing into .venv"
	@$(PIP) -e '.[all,demo]' $(PROCESSES)
	@touch $@

.venv/.dev: $(INSTALLED) | .venv/bin/python
	@echo "installing into .venv, with the tools for tests"
	@$(PIP) -e '.[all,dev]' $(PROCESSES)
	@touch $@ .venv/.demo
