# A short name for every chore; the chores themselves are in xtask/.

PREFIX ?= /usr/local

.PHONY: help setup build demo demo-cluster test bench bench-cluster bench-sched bench-friendly bench-substrate bench-volume bench-migrate bench-apps bench-autoscale bench-patterns test-sched-ext test-kvm nightly test-ui test-ts test-e2b-js soak bench-docker test-api deb test-deb check install clean

help:
	@echo 'make setup     install the Debian packages it takes (root)'
	@echo 'make build     build everything into target/dist'
	@echo 'make demo      boot a VM, fork it, and show what happens (root); demo-cluster: over several hosts'
	@echo 'make test      build, check and test everything (root)'
	@echo 'make test-sched-ext   test scheduling by sched_ext, in a guest (root)'
	@echo 'make test-kvm  test on KVM, in a lab of its own where the host has none (root)'
	@echo 'make nightly   what is too long for each change: KVM, briefly, the page, the packages, the API, ten minutes of soak (root; takes chromium, Node and npm)'
	@echo 'make deb       build Debian packages into target/deb; test-deb: install, use and purge them on a fresh Debian (root)'
	@echo 'make test-ui   test the page in a headless Chromium (root; takes the package chromium)'
	@echo 'make test-ts   test the TypeScript package; takes Node and npm (root)'
	@echo 'make test-e2b-js  test the JavaScript SDK of E2B as it is; takes Node and npm (root)'
	@echo 'make bench-docker  what users do most, beside Docker; takes a Docker daemon (root)'
	@echo 'make soak      twenty SDK users at once for ten minutes (root)'
	@echo 'make test-api  ask a daemon whatever the API description allows; takes tools from PyPI (root)'
	@echo 'make check     formatting, lints, documentation, house rules'
	@echo 'make bench     measure (root); bench-cluster: several hosts; bench-sched: scheduling policies; bench-friendly: friendly guests; bench-substrate: substrates; bench-volume: volumes; bench-migrate: moves between hosts; bench-apps: MPI on clones; bench-autoscale: a web server that grows by forking; bench-patterns: the examples beside what is done without a fork'
	@echo 'make install   copy target/dist to PREFIX ($(PREFIX))'
	@echo 'make clean     remove everything built'

setup:
	@scripts/setup

build: setup
	cargo xtask dist

demo demo-cluster bench bench-cluster bench-sched bench-friendly bench-substrate bench-volume bench-apps bench-autoscale bench-patterns test test-sched-ext test-kvm deb test-deb check: setup
	cargo xtask $@

# Opt-in: Chromium is a large package.
test-ui: build
	ui/test/run.py --dist target/dist --pictures target/page

bench-migrate: setup
	cargo xtask bench-cluster --parts moves --rounds 10 --round-trips 0,80,150 --dirtying 0,8,24 --out bench/out/migrate

# What is too long for every change: the opt-in tests that need nothing that Debian does not have.
nightly: setup
	cargo xtask test-kvm --smoke
	$(MAKE) test-ui test-ts test-api test-deb soak

# Opt-in: takes Node and npm.
test-e2b-js: setup
	FORKYARD_E2B_JS=1 cargo xtask test -- e2b::

# Opt-in: takes a Docker daemon and busybox-static.
bench-docker: build
	bench/docker/run --dist target/dist

# Opt-in: ten minutes.
soak: build
	bench/soak/run --dist target/dist

test-ts: build
	sdk/typescript/test/run

# Opt-in: a minute or two, and thirty packages of PyPI.
test-api: build
	scripts/test-api

install: build
	install -d '$(DESTDIR)$(PREFIX)'
	cp -R target/dist/. '$(DESTDIR)$(PREFIX)'
	install -d '$(DESTDIR)$(PREFIX)/lib/systemd/system'
	for unit in forkyardd forkyard-frontend; do \
		sed 's|@PREFIX@|$(PREFIX)|' packaging/$$unit.service > '$(DESTDIR)$(PREFIX)/lib/systemd/system/'$$unit.service; \
	done

clean:
	cargo clean
