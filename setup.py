# Copyright (c) mmib contributors. All rights reserved.
import os.path as osp
import re

from setuptools import find_packages, setup

ROOT = osp.dirname(osp.abspath(__file__))


def read(*path):
    with open(osp.join(ROOT, *path), encoding='utf-8') as file:
        return file.read()


setup(
    name='mmib',
    version=re.search(r"__version__ = '(.+)'", read('mmib',
                                                    'version.py')).group(1),
    description='InfoBatch, unbiased dynamic data pruning, for MMEngine and '
    'MMSegmentation',
    long_description=read('README.md'),
    long_description_content_type='text/markdown',
    license='Apache-2.0',
    packages=find_packages(include=['mmib', 'mmib.*']),
    package_data={'mmib.report': ['template.html']},
    python_requires='>=3.9',
    install_requires=['numpy', 'torch>=2.0'],
    # The two stacks share their import names and overwrite each other, so
    # neither is a requirement. These are the versions that were tested.
    extras_require={
        'onedl': [
            'onedl-mmengine==0.10.12', 'onedl-mmcv==2.3.6',
            'onedl-mmsegmentation==1.4.2'
        ],
        'openmmlab': [
            'mmengine==0.10.7', 'mmcv==2.1.0', 'mmsegmentation==1.2.2', 'ftfy',
            'regex'
        ],
        # For `mmib.report`.
        'report': ['jinja2', 'matplotlib>=3.7', 'pandas'],
        'test': [
            'pytest==9.2.0', 'hypothesis==6.170.15', 'flake8==7.5.0',
            'isort==9.0.2', 'yapf==0.43.0', 'pandas==3.1.1', 'scipy==1.17.1',
            'jinja2==3.1.6', 'matplotlib==3.11.2'
        ],
    })
