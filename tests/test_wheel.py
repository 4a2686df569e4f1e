# Copyright (c) mmib contributors. All rights reserved.
"""What is installed is whole. The wheel is built of the source distribution,
so that this is whole too."""
import email
import os
import os.path as osp
import re
import subprocess
import sys
import tarfile
import zipfile

import mmengine
import pytest

from tests.helpers.processes import free_port

ROOT = osp.dirname(osp.dirname(osp.abspath(__file__)))
BUILD = """
import sys
from setuptools import build_meta
getattr(build_meta, sys.argv[1])(sys.argv[2])
"""
DEMO = 'mmib::upernet/upernet_r18_1xb8-300-infobatch_demo-64x64'
BASELINE = 'mmib::upernet/upernet_r18_1xb8-1k_camvid-144x192'


def run(*command, cwd, **env):
    # Without the source: pip would take that for an installed mmib.
    result = subprocess.run([str(part) for part in command],
                            cwd=cwd,
                            env=dict(os.environ, PYTHONPATH='', **env),
                            capture_output=True,
                            text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout + result.stderr


def files_below(*folders):
    """Relative paths of the files of the project in folders of it."""
    return {
        osp.relpath(osp.join(path, name), ROOT)
        for folder in folders
        for path, _, names in os.walk(osp.join(ROOT, folder))
        if '__pycache__' not in path for name in names
    }


@pytest.fixture(scope='module')
def built(tmp_path_factory):
    """Path of the source distribution, and of the wheel that is made of it
    without a network."""
    folder = tmp_path_factory.mktemp('built')
    run(sys.executable, '-c', BUILD, 'build_sdist', folder, cwd=ROOT)
    source, = folder.glob('*.tar.gz')
    with tarfile.open(source) as file:
        file.extractall(folder)
    unpacked = str(source)[:-len('.tar.gz')]
    run(sys.executable, '-c', BUILD, 'build_wheel', folder, cwd=unpacked)
    wheel, = folder.glob('*.whl')
    return source, wheel


def test_the_source_distribution_has_what_its_tests_need(built):
    with tarfile.open(built[0]) as file:
        names = {name.partition('/')[2] for name in file.getnames()}
    assert names >= files_below('mmib', 'mmib_cli', 'configs', 'tools',
                                'tests', 'benchmarks', 'research', 'docs')
    assert names >= {
        'README.md', 'CHANGELOG.md', 'CITATION.cff', 'CONTRIBUTING.md',
        'LICENSE', 'SECURITY.md', 'setup.cfg', 'model-index.yml'
    }


def test_the_wheel_has_all_that_is_used(built):
    with zipfile.ZipFile(built[1]) as file:
        names = file.namelist()
    code = files_below('mmib', 'mmib_cli')
    mim = {
        f'mmib/.mim/{name}'
        for name in {*files_below('configs', 'tools'), 'model-index.yml'}
    }
    found = {name for name in names if '.dist-info/' not in name}
    assert found == code | mim and len(names) == len(set(names))


@pytest.mark.parametrize('repository', ['', 'https://github.com/someone/mmib'])
def test_the_readme_renders_on_a_package_page(built, tmp_path, repository):
    """Its links lead to the repository, if that is given."""
    markdown = pytest.importorskip('readme_renderer.markdown')
    source = str(built[0])[:-len('.tar.gz')]
    prepare = 'prepare_metadata_for_build_wheel'
    run(sys.executable,
        *('-c', BUILD, prepare, tmp_path),
        cwd=source,
        MMIB_REPOSITORY=repository)
    path, = tmp_path.glob('*.dist-info/METADATA')
    metadata = email.message_from_string(path.read_text('utf-8'))
    page = markdown.render(metadata.get_payload())
    assert metadata['Description-Content-Type'] == 'text/markdown'
    links = set(re.findall(r'(?:href|src)="([^"#]+)"', page))
    links.remove('https://arxiv.org/abs/2303.04947')
    assert len(links) > 8 and '<table>' in page
    for link in links:
        kind = 'raw' if link.endswith(('.png', '.jpg')) else 'blob'
        prefix = f'{repository}/{kind}/main/' if repository else ''
        assert link.startswith(prefix)
        assert osp.exists(osp.join(ROOT, link[len(prefix):]))
    urls = metadata.get_all('Project-URL') or []
    assert len(urls) == (4 if repository else 0)
    assert all(f', {repository}' in url for url in urls)


@pytest.mark.slow
def test_an_installed_wheel_from_an_empty_folder(built, tmp_path):
    """It trains on two ranks, resumes on one, tests, reports, ranks, converts,
    where nothing of the source is in sight."""
    venv, folder = tmp_path / 'venv', tmp_path / 'empty'
    folder.mkdir()
    run(sys.executable, '-m', 'venv', venv, cwd=tmp_path)
    python = venv / 'bin' / 'python'
    pip = (python, '-m', 'pip', 'install', '--no-deps', '--no-index')
    run(*pip, built[1], cwd=tmp_path)
    # The stack is that of this environment.
    packages, = venv.glob('lib/python*/site-packages')
    (packages / 'stack.pth').write_text(
        osp.dirname(osp.dirname(mmengine.__file__)))

    def call(*command):
        return run(*command, cwd=folder)

    mmib = venv / 'bin' / 'mmib'
    assert f'1.0.0, {packages / "mmib"}\n' in call(mmib, 'env')
    call(python, packages / 'mmib' / '.mim' / 'tools' / 'make_demo_data.py',
         'data')
    options = ['--cfg-options']
    for split, indices in (('train', 32), ('val', 4), ('test', 4)):
        options += [
            f'{split}_dataloader.{option}'
            for option in ('dataset.data_root=data', 'num_workers=0',
                           'persistent_workers=False',
                           f'dataset.indices={indices}')
        ]
    options += [
        'train_dataloader.batch_size=4', 'train_cfg.val_interval=100',
        'default_hooks.checkpoint.interval=12',
        'default_hooks.logger.interval=1', 'find_unused_parameters=True'
    ]
    assert 'A pass is 32 images' in call(mmib, 'forecast', DEMO, *options)
    text = call(python, '-m', 'torch.distributed.run', '--nproc_per_node=2',
                f'--master_port={free_port()}', '-m', 'mmib', 'train', DEMO,
                '--work-dir', 'out', '--launcher', 'pytorch', *options,
                'train_cfg.max_iters=12')
    assert 'GPU number: 2' in text and 'Iter(train) [12/12]' in text
    text = call(mmib, 'train', DEMO, '--work-dir', 'out', '--resume', *options,
                'train_cfg.max_iters=24')
    assert 'Iter(train) [24/24]' in text
    assert 'InfoBatch: 24 iterations covered' in text
    text = call(mmib, 'test', DEMO, osp.join('out', 'iter_24.pth'), *options)
    assert 'Iter(test) [4/4]' in text and 'mIoU: ' in text
    call(mmib, 'report', 'out')
    page = (folder / 'out' / 'report.html').read_text()
    ranked = re.search('<pre>(mmib rank .*)</pre>', page)[1]
    assert 'data:image/svg+xml;base64,' in page
    call(mmib, *ranked.split()[1:])
    page = (folder / 'out' / 'rank_train.html').read_text()
    assert 'Look at these' in page and 'data:image/webp;base64,' in page
    for command in ('convert', 'shorten'):
        call(mmib, command, BASELINE, '.')
    written = (folder / 'upernet_r18_1xb8-600_camvid-144x192.py').read_text()
    assert "__import__('mmib').__path__[0]" in written
    assert str(tmp_path) not in written
