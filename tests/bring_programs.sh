#!/bin/sh
# Bring what some tests need and no Python package holds. Where that cannot be done the tests that
# need it are skipped, and the last lines of the run say so.
missing=""
command -v chromium >/dev/null || command -v chromium-browser >/dev/null || missing="$missing chromium"
command -v firefox-esr >/dev/null || command -v firefox >/dev/null || missing="$missing firefox-esr"
command -v node >/dev/null || missing="$missing nodejs"
command -v strace >/dev/null || missing="$missing strace"
command -v groff >/dev/null || missing="$missing groff"
fc-list ':lang=ja' 2>/dev/null | grep -q . || missing="$missing fontconfig fonts-wqy-zenhei"
[ -z "$missing" ] && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  apt-get update -qq && apt-get install -y -qq --no-install-recommends $missing >/dev/null && exit 0
fi
echo "not on this machine:$missing; to test with them: sudo apt-get install$missing"
