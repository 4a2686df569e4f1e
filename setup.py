# Copyright (c) mmib contributors. All rights reserved.
import os
import os.path as osp
import re
import shutil

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

ROOT = osp.dirname(osp.abspath(__file__))
# Where the source is, as https://github.com/OWNER/NAME. A package page then
# has links to it, and those of the README lead there.
REPOSITORY = os.environ.get('MMIB_REPOSITORY', '')


def read(*path):
    with open(osp.join(ROOT, *path), encoding='utf-8') as file:
        return file.read()


def readme():
    """The README with relative links and pictures made absolute."""

    def absolute(match):
        kind = 'raw' if match[2].endswith(('.png', '.jpg')) else 'blob'
        return f'{match[1]}{REPOSITORY}/{kind}/main/{match[2]}'

    text = read('README.md')
    if not REPOSITORY:
        return text
    return re.sub(
        r'(\]\(|^\[\w+\]: )(?!https?:|#)([^\s)]+)', absolute, text, flags=re.M)


class BuildWithMim(build_py):
    """Copies what mim and `mmib::` look for to where OpenMMLab's packages have
    it. In a source checkout and an editable install it is used in place."""

    def run(self):
        super().run()
        # Older versions of setuptools don't have it.
        if getattr(self, 'editable_mode', False):
            return
        mim = osp.join(self.build_lib, 'mmib', '.mim')
        shutil.rmtree(mim, ignore_errors=True)  # of an earlier build
        for folder in ('configs', 'tools'):
            shutil.copytree(
                osp.join(ROOT, folder),
                osp.join(mim, folder),
                ignore=shutil.ignore_patterns('__pycache__'))
        shutil.copy(osp.join(ROOT, 'model-index.yml'), mim)


setup(
    name='mmib',
    version=re.search(r"__version__ = '(.+)'", read('mmib',
                                                    'version.py')).group(1),
    description='InfoBatch, unbiased dynamic data pruning, and rankings of '
    'wrong labels, for MMSegmentation, MMPretrain, MMDetection and PyTorch',
    long_description=readme(),
    long_description_content_type='text/markdown',
    author='mmib contributors',
    project_urls={
        'Source': REPOSITORY,
        'Documentation': f'{REPOSITORY}/tree/main/docs',
        'Changes': f'{REPOSITORY}/blob/main/CHANGELOG.md',
        'Issues': f'{REPOSITORY}/issues'
    } if REPOSITORY else {},
    license='Apache-2.0',
    keywords='data pruning, InfoBatch, semantic segmentation, MMEngine, '
    'MMSegmentation, deep learning',
    classifiers=[
        'Development Status :: 5 - Production/Stable',
        'Intended Audience :: Developers',
        'Intended Audience :: Science/Research',
        'Operating System :: POSIX :: Linux',
        'Programming Language :: Python :: 3',
        'Programming Language :: Python :: 3 :: Only',
        'Programming Language :: Python :: 3.11',
        'Programming Language :: Python :: 3.12',
        'Topic :: Scientific/Engineering :: Artificial Intelligence',
        'Topic :: Scientific/Engineering :: Image Processing',
        'Typing :: Typed',
    ],
    packages=find_packages(include=['mmib', 'mmib.*', 'mmib_cli']),
    package_data={
        'mmib': ['py.typed'],
        'mmib.labels': [
            'gallery.css', 'gallery.html', 'repair.txt', 'review.js'
        ],
        'mmib.report': ['run.html', 'shell.html'],
        'mmib_cli': ['py.typed']
    },
    cmdclass={'build_py': BuildWithMim},
    entry_points={'console_scripts': ['mmib = mmib_cli:main']},
    zip_safe=False,
    # What is tested, with torch 2.13. Torch 2.4 has no build for CPUs alone.
    python_requires='>=3.11',
    install_requires=['numpy', 'torch>=2.4'],
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
        # For classification and masked images, with the same stack as 'onedl'.
        # torchvision has to fit torch.
        'mmpretrain': [
            'onedl-mmengine==0.10.12', 'onedl-mmcv==2.3.6',
            'onedl-mmpretrain==1.3.6', 'torchvision'
        ],
        # For detection, with OpenMMLab's stack: these need compiled
        # operations of mmcv, which OneDL's comes without.
        'mmdet': ['mmengine==0.10.7', 'mmcv==2.1.0', 'mmdet==3.3.0'],
        # For `mmib.report` and `mmib.labels`.
        'report': ['jinja2', 'matplotlib>=3.7', 'pandas', 'scipy'],
        # For masks that go to Label Studio and come back.
        'repair': ['label-studio-sdk>=2.1'],
        'test': [
            'pytest==9.2.0', 'hypothesis==6.170.15', 'flake8==7.5.0',
            'isort==9.0.2', 'yapf==0.43.0', 'pandas==3.1.1', 'scipy==1.17.1',
            'mypy==2.4.1', 'pre-commit==4.7.0', 'pytest-cov==7.1.0',
            'jinja2==3.1.6', 'matplotlib==3.11.2', 'readme_renderer[md]==46.0',
            'pytest-xdist==3.8.0', 'tensorboard==2.21.0', 'shtab==1.13.0'
        ],
        # For `mmib.integrations`.
        'lightning': ['lightning==2.6.6'],
        'accelerate': ['accelerate==1.15.0'],
        'transformers': ['accelerate==1.15.0', 'transformers==5.24.0'],
        # For examples/cluster. Ray, 420 MB with what it needs, isn't a part of
        # it.
        'cluster': ['submitit==1.5.4'],
        # For the folder examples, besides the frameworks.
        'examples': [
            'diffusers==0.42.1', 'peft==0.21.2', 'pillow', 'matplotlib>=3.7',
            'nbclient==0.11.0', 'ipykernel==7.4.0'
        ],
        'docs': [
            'sphinx==9.0.4', 'myst-parser==5.2.0', 'furo==2025.12.19',
            'sphinx-copybutton==0.5.2'
        ],
    })
