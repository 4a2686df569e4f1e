# Copyright (c) mmib contributors. All rights reserved.
"""Print the mIoU of arms by their learning rate, from results that
differ in it alone."""
import argparse
from typing import Dict

import pandas as pd

from benchmarks.camvid.report import TASK
from benchmarks.compare.paired import markdown
from benchmarks.compare.report import load


def by_rate(results: Dict[str, pd.DataFrame]) -> pd.DataFrame:
    """mIoU of the arms that all results have, over the seeds that all of them
    have, with the number of these."""
    columns = {rate: cells['quality'] for rate, cells in results.items()}
    mious = pd.concat(columns, axis=1).dropna()
    means = mious.groupby('arm', observed=True).mean().map('{:.2f}'.format)
    means.insert(0, 'seeds', mious.groupby('arm', observed=True).size())
    return means


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        'results', nargs='+', metavar='RATE=FILE', help='results of each rate')
    args = parser.parse_args()
    files = dict(text.split('=', 1) for text in args.results)
    print(
        markdown(by_rate({
            r: load(path, TASK)
            for r, path in files.items()
        })))


if __name__ == '__main__':
    main()
