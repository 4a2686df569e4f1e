#!/usr/bin/env bash
# Is pruning worth it on this data? Run it in this folder.
set -e
[ -d data ] || python ../../tools/make_demo_data.py data
mmib forecast baseline.py --infobatch
mmib train baseline.py --work-dir work_dirs/full
mmib train baseline.py --shorten --work-dir work_dirs/control
mmib train baseline.py --infobatch --work-dir work_dirs/pruned
mmib report work_dirs/pruned --compare work_dirs/full work_dirs/control --out report.html
