# The commands of the house. Each says only what it made or what is wrong.
#
#   make          build bin/mariposa and bin/hello
#   make man      the manual pages, in bin/man
#   make completion  completion for bash, zsh and fish, in bin/completion
#   make picture  the picture in the README, recorded from a real run
#   make run      build, then run the whole system here with the hello example
#   make test     all that must hold before a commit: lint, tests, race detector
#   make test-repeat  make test again and again, to find tests that fail now and then (N=10, BUSY=1)
#   make soak     the scenarios and the simulation for longer (SOAK=10m, SEED=…)
#   make fmt      format
#   make lint     format check, golangci-lint (with all of go vet)
#   make vuln     known vulnerabilities in what is called, where their database can be reached (GOVULNDB=…)
#   make clean    remove what the above made (the built tools stay: make distclean)

MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := build
.PHONY: build man completion picture run test test-repeat soak fmt lint vuln tools clean distclean

# What ships is static, so what is tested is too; only the race detector needs cgo.
export CGO_ENABLED := 0

# Without paths of this machine in what is compiled, clones share the build cache.
export GOFLAGS := $(strip $(filter-out -trimpath,$(shell go env GOFLAGS)) -trimpath)

TOOLS := .cache/tools

# The nearest tag; before the first tag, the changelog's newest release (or
# 0.0.0) with the commit; without git, the changelog alone.
ifndef VERSION
VERSION := $(shell git describe --tags --dirty 2>/dev/null || { \
	v=$$(sed -n 's/^\#\# \[\([0-9][^]]*\)\].*/\1/p' CHANGELOG.md 2>/dev/null | head -n 1); \
	c=$$(git describe --always --dirty 2>/dev/null); \
	echo "$${v:-0.0.0}$${c:+-dev+$$c}"; })
endif

# Rooms where goroutines meet: `make test` runs these under the race detector, and
# all others without it. Left out on purpose: the pure rooms (a test holds them free
# of `go` statements), simulate (steps one message at a time; its worth is in seeds)
# and cmd (its tests start the real, static binary). Rooms not built yet are skipped.
RACE_ROOMS := clock mailbox listener wire store driver engine fleet agent health balance discover \
	picture seal auth api web client cli examples
RACE := $(patsubst %,./%/...,$(wildcard $(RACE_ROOMS)))
# Of these, the ones whose long tests take too long under the race detector: they run
# without it too, and with it (-short) without those, and a fifth of generated cases.
TWICE_ROOMS := api wire store/memory store/sqlite store/internal driver/dummy engine seal
TWICE := $(patsubst %,./%/...,$(wildcard $(TWICE_ROOMS)))

build:
	@go build -ldflags "-s -w -X main.version=$(VERSION)" -o bin/mariposa ./cmd/mariposa
	@go build -ldflags "-s -w" -o bin/hello ./examples/hello
	@echo "built bin/mariposa ($(VERSION)) and bin/hello"

man: build
	@rm -rf bin/man
	@bin/mariposa man bin/man
	@echo "wrote $$(ls bin/man | wc -l) manual pages to bin/man"

completion: build
	@mkdir -p bin/completion
	@bin/mariposa completion bash > bin/completion/mariposa.bash
	@bin/mariposa completion zsh > bin/completion/_mariposa
	@bin/mariposa completion fish > bin/completion/mariposa.fish
	@echo "wrote completion for bash, zsh and fish to bin/completion"

picture: build
	@go run ./scripts/picture bin docs/terminal.svg
	@echo "recorded docs/terminal.svg"

run:
	@[ -x bin/mariposa ] || echo "compiling Mariposa; the first time this takes a minute or two (packages are listed as they are done)"
	@go build -trimpath -v -ldflags "-s -w -X main.version=$(VERSION)" -o bin/mariposa ./cmd/mariposa
	@$(MAKE) build
	@exec bin/mariposa dev --deploy examples/hello/mariposa.yaml

test:
	@scripts/setup.sh
	@RACE="$(RACE)" TWICE="$(TWICE)" TESTFLAGS="$(TESTFLAGS)" scripts/test.sh

# BUSY=1 keeps every core busy meanwhile; each run's log stays in .cache/test-logs.
N ?= 10
BUSY ?=
test-repeat:
	@N="$(N)" BUSY="$(BUSY)" TESTFLAGS="$(TESTFLAGS)" scripts/test-repeat.sh

# The simulation reads both from its environment; an empty seed means a new one,
# which a failure prints. MARIPOSA_WIDE is how many times more of everything else runs.
SOAK ?= 10m
SEED ?=
soak:
	@MARIPOSA_WIDE=10 MARIPOSA_SOAK="$(SOAK)" MARIPOSA_SEED="$(SEED)" go test ./converge ./simulate -count=1 -timeout 0 -v

tools:
	@scripts/setup.sh tools

fmt: tools
	@$(TOOLS)/gofumpt -l -w .

# Both run whatever the other finds, so that one run shows everything. Clones share
# the linter's cache, as they share the compiler's.
lint: tools
	@bad=0; \
	unformatted=$$($(TOOLS)/gofumpt -l .) || bad=1; \
	if [ -n "$$unformatted" ]; then \
		echo "not formatted (make fmt):"; echo "$$unformatted"; bad=1; \
	fi; \
	$(TOOLS)/golangci-lint run ./... || bad=1; \
	exit $$bad

# Not part of `make test`: it depends on what the world finds out, and on a network.
vuln:
	@GOVULNDB="$(GOVULNDB)" scripts/vuln.sh

clean:
	@rm -rf bin .cache/test .cache/test-logs

distclean: clean
	@rm -rf .cache
