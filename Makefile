# Better Compute: build, try, check, measure, install. `make help` lists the targets.

PREFIX     ?= /usr/local
SYSCONFDIR ?= /etc
DESTDIR    ?=
CARGO      ?= cargo
DEMO_DIR   ?= /var/lib/better-compute/demo

bindir  = $(DESTDIR)$(PREFIX)/bin
sbindir = $(DESTDIR)$(PREFIX)/sbin
mandir  = $(DESTDIR)$(PREFIX)/share/man
confdir = $(DESTDIR)$(SYSCONFDIR)/better-compute
unitdir = $(DESTDIR)$(PREFIX)/lib/systemd/system
userdir = $(DESTDIR)$(PREFIX)/lib/sysusers.d
bashdir = $(DESTDIR)$(PREFIX)/share/bash-completion/completions
zshdir  = $(DESTDIR)$(PREFIX)/share/zsh/site-functions
fishdir = $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d

# Where cargo puts what it builds.
TARGET   = $(or $(CARGO_TARGET_DIR),target)
RELEASE  = $(TARGET)/release
COMMANDS = bsub bq bcancel binfo bctl
DAEMONS  = ctld noded

.PHONY: help build demo demo-down check bench install clean

help: ## This list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

build: ## Build the programs, optimised
	$(CARGO) build --locked --release --package cli --package ctld --package noded

demo: ## Install PostgreSQL if missing, build, bring a cluster up here and run jobs on it
	@DEMO_DIR=$(DEMO_DIR) scripts/demo

demo-down: ## Stop the demo's cluster, cancelling its jobs
	@DEMO_DIR=$(DEMO_DIR) scripts/demo down

check: ## Test everything
	@scripts/check

bench: ## Measure; prints JSON lines
	@scripts/bench

install: build ## Install under PREFIX (/usr/local) below DESTDIR; configuration that is there stays
	install -d $(bindir) $(sbindir) $(confdir) $(unitdir) $(userdir) $(bashdir) $(zshdir) $(fishdir)
	install -m 0755 $(addprefix $(RELEASE)/,$(COMMANDS)) $(bindir)
	install -m 0755 $(addprefix $(RELEASE)/,$(DAEMONS)) $(sbindir)
	scripts/install-manual $(RELEASE) $(mandir)
	for command in $(COMMANDS); do \
	    $(RELEASE)/bctl completions bash --command $$command >$(bashdir)/$$command && \
	    $(RELEASE)/bctl completions zsh --command $$command >$(zshdir)/_$$command && \
	    $(RELEASE)/bctl completions fish --command $$command >$(fishdir)/$$command.fish || exit 1; \
	done
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
