# Better Compute: build, try, check, measure, install. `make help` lists the targets.

PREFIX     ?= /usr/local
SYSCONFDIR ?= /etc
DESTDIR    ?=
CARGO      ?= cargo
DEMO_DIR   ?= /var/lib/better-compute/demo

bindir  = $(DESTDIR)$(PREFIX)/bin
sbindir = $(DESTDIR)$(PREFIX)/sbin
confdir = $(DESTDIR)$(SYSCONFDIR)/better-compute
unitdir = $(DESTDIR)$(PREFIX)/lib/systemd/system
userdir = $(DESTDIR)$(PREFIX)/lib/sysusers.d

# Where cargo puts what it builds.
TARGET   = $(or $(CARGO_TARGET_DIR),target)
RELEASE  = $(TARGET)/release
COMMANDS = bsub bq bcancel binfo bctl
DAEMONS  = ctld noded

.PHONY: help build demo demo-down check torture drill bench install clean

help: ## This list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

build: ## Build the programs, optimised, with their man pages and completions
	$(CARGO) build --locked --release --package cli --package ctld --package noded
	$(CARGO) run --quiet --locked --release --package cli --example generate -- $(RELEASE)/generated

demo: ## Install PostgreSQL if missing, build, bring a cluster up here and run jobs on it
	@DEMO_DIR=$(DEMO_DIR) scripts/demo

demo-down: ## Stop the demo's cluster, cancelling its jobs
	@DEMO_DIR=$(DEMO_DIR) scripts/demo down

check: ## Test everything
	@scripts/check

torture: ## Attack the book with many acts at once: SECONDS_TO_RUN=600 SEED=1
	@scripts/install-postgresql
	@SECONDS_TO_RUN=$(or $(SECONDS_TO_RUN),600) SEED=$(SEED) scripts/test-db \
	    $(CARGO) test --locked --package ctld --lib -- --nocapture store::tests::torture

drill: ## Sell two sixes of eight in four forms, of which one must fail: SECONDS_TO_RUN=5 SEED=1
	@$(CARGO) build --quiet --locked --package tests --bin drill
	@scripts/install-postgresql
	@scripts/test-db --durable $(TARGET)/debug/drill --seconds $(or $(SECONDS_TO_RUN),5) $(if $(SEED),--seed $(SEED))

bench: ## Measure; prints JSON lines
	@$(CARGO) build --quiet --locked --release --package cli --package ctld --package noded --package tests --bins
	@scripts/install-postgresql
	@$(RELEASE)/bench

# Behind sudo there is often no cargo: then what `make build` made is installed.
install: ## Install under PREFIX (/usr/local) below DESTDIR; configuration that is there stays
	@if command -v $(CARGO) >/dev/null; then $(MAKE) build; else test -d $(RELEASE)/generated || \
	    { echo "install: run \`make build\` first: there is no cargo here" >&2; exit 1; }; fi
	install -d $(bindir) $(sbindir) $(confdir) $(unitdir) $(userdir)
	install -m 0755 $(addprefix $(RELEASE)/,$(COMMANDS)) $(bindir)
	install -m 0755 $(addprefix $(RELEASE)/,$(DAEMONS)) $(sbindir)
	scripts/install-generated $(RELEASE)/generated $(DESTDIR)$(PREFIX)/share
	for unit in contrib/systemd/*.service; do \
	    sed 's|/usr/sbin/|$(PREFIX)/sbin/|; s|/etc/better-compute|$(SYSCONFDIR)/better-compute|' $$unit \
	        >$(unitdir)/$$(basename $$unit) || exit 1; \
	done
	install -m 0644 contrib/sysusers/better-compute.conf $(userdir)
	for name in ctld noded client; do \
	    test -e $(confdir)/$$name.toml || install -m 0644 contrib/$$name.toml $(confdir)/$$name.toml || exit 1; \
	done

clean: ## Remove what was built
	$(CARGO) clean
