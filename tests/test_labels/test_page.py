# Copyright (c) mmib contributors. All rights reserved.
"""Verdicts on the images of a ranking, in a browser that is driven by keys and
clicks. The fixtures take 10 s on a quiet core."""
import base64
import csv
import hashlib
import os
import re
import time

import pytest
from mmengine.runner import Runner

import mmib_cli
from mmib.labels.lists import find_images
from mmib.labels.verdicts import read_review
from mmib.report.checkpoint import read_checkpoint
from tests.helpers.segmentors import write_images
from tests.helpers.work_dirs import files_config, rank_by_score

from ..test_report.browser import CHROMIUM, WIDTHS
from .devtools import Browser

# Of the images: a formula, which has all that a cell may not hold as it is.
FOLDER = '=1+2,"<img src=x onerror=alert(1)>\''


@pytest.fixture(scope='module')
def page(tmp_path_factory):
    """The ranking of 40 images, of which 30 are shown."""
    base = tmp_path_factory.mktemp('review')
    write_images(str(base / 'data'), 40)
    here = os.getcwd()
    os.chdir(base)
    try:
        os.symlink(base / 'data' / 'images' / 'training', FOLDER)
        config = files_config('data', base / 'run')
        config.train_dataloader.dataset.update(
            data_root=None,
            data_prefix=dict(
                img_path=FOLDER, seg_map_path='data/annotations/training'))
        Runner.from_cfg(config).train()
        rank = [*rank_by_score('run'), '--images']
        mmib_cli.main([*rank, '15'])
        mmib_cli.main([*rank, '3', '--out', 'run/few'])
    finally:
        os.chdir(here)
    return base / 'run' / 'rank_train.html'


@pytest.fixture(scope='module')
def browser(tmp_path_factory):
    if CHROMIUM is None:
        pytest.skip('no chromium: apt-get install chromium')
    browser = Browser(tmp_path_factory.mktemp('browser'))
    yield browser
    browser.close()


@pytest.fixture
def opened(browser, page):
    """Opens the page as it is before any review."""

    def open_page(*args, **kwargs):
        browser.open(page, *args, **kwargs)
        browser.run('localStorage.clear()')
        browser.open(page, *args, **kwargs)
        return browser

    browser.errors.clear()
    yield open_page
    assert not browser.errors


def verdicts(browser):
    return browser.run('[...document.querySelectorAll(".card")]'
                       '.map(card => card.dataset.verdict)')


def said(browser):
    """The text of the bar."""
    return browser.run(
        'document.querySelector("#bar [role=status]").textContent')


def current(browser):
    """Place of the card that has the focus."""
    return browser.run('[...document.querySelectorAll(".card")]'
                       '.indexOf(document.activeElement)')


def button(card, value):
    """Selector of a button of a card, counted from 0."""
    part = 'highest' if card < 15 else 'lowest'
    return (f'.cards[data-end={part}] > .card:nth-child({card % 15 + 1}) '
            f'button[{value}]')


def save(browser):
    """The file that the page saves."""
    path = browser.downloads / 'review.csv'
    path.unlink(missing_ok=True)
    browser.click('#bar [data-is=save]')
    end = time.time() + 60
    # A name is reserved by an empty file.
    while not path.exists() or not path.stat().st_size:
        assert time.time() < end
        time.sleep(0.02)
    return path


def rows_of(path):
    with open(path, encoding='utf-8', newline='') as file:
        return list(csv.DictReader(file))


def table(page):
    """What is known of all images, by number."""
    rows = rows_of(page.with_name('rank_train_images.csv'))
    return sorted(rows, key=lambda row: int(row['image']))


LOOKS = pytest.mark.parametrize('width, scheme', [(1280, 'light'),
                                                  (400, 'dark')])


@pytest.mark.parametrize('width', WIDTHS)
@pytest.mark.parametrize('scheme', ['light', 'dark'])
def test_thirty_images_by_keys(opened, page, width, scheme):
    browser = opened(width, scheme)
    assert said(browser) == '0 of 15 looked at, 0 wrong'
    # The first key leads to the first card, and judges nothing.
    browser.press('1')
    assert current(browser) == 0 and set(verdicts(browser)) == {''}
    keys = ['1', '2', '3', '1', '1'] * 6
    browser.press(*keys[:15])
    # The lowest are folded, and needn't be looked at.
    assert current(browser) == 14
    browser.unfold('#gallery > details')
    browser.click(button(15, 'value=wrong'))
    browser.press(*keys[15:])
    names = {'1': 'wrong', '2': 'hard', '3': 'unsure'}
    expected = [names[key] for key in keys]
    assert verdicts(browser) == expected
    assert said(browser) == '15 of 15 looked at, 9 wrong'
    # Two are taken back, of which one was judged twice.
    browser.press('ArrowLeft', '1')
    browser.press('u')
    assert current(browser) == 28
    browser.press('z', control=True)
    assert current(browser) == 29
    assert verdicts(browser) == [*expected[:-1], '']
    browser.open(page, width, scheme)
    assert verdicts(browser) == [*expected[:-1], '']
    assert said(browser) == '15 of 15 looked at, 9 wrong'
    path, known = save(browser), table(page)
    rows = rows_of(path)
    # The first 15 of 40, and the last 15.
    assert [int(row['rank'])
            for row in rows] == [*range(1, 16), *range(27, 41)]
    by_rank = sorted(known, key=lambda image: int(image['rank']))
    assert by_rank == sorted(known, key=lambda image: -float(image['score']))
    for row in rows:
        image = by_rank[int(row['rank']) - 1]
        # An apostrophe comes before a formula.
        assert image['path'].startswith("'=1+2")
        assert row['image'] == image['path']
        assert float(row['score']) == pytest.approx(
            float(image['score']), rel=1e-5)
        assert (row['ranking'], row['images']) == ('score', '40')
        assert re.fullmatch(r'\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ', row['date'])
    assert [row['verdict'] for row in rows[:15]] == expected[:15]
    # Of the lowest the last one comes first.
    assert [row['verdict'] for row in rows[15:]] == expected[15:29][::-1]
    # As `mmib train --without` finds those that are wrong.
    paths = [image['path'][1:] for image in known]
    numbers = find_images(path, paths, 'without')
    assert sorted(numbers) == sorted(
        int(by_rank[int(row['rank']) - 1]['image']) for row in rows
        if row['verdict'] == 'wrong')


@LOOKS
def test_by_clicks(opened, page, width, scheme):
    browser = opened(width, scheme)
    browser.click(button(2, 'value=wrong'))
    browser.unfold('#gallery > details')
    browser.click(button(17, 'value=hard'))
    browser.click(button(20, 'value=wrong'))
    # Once more takes it back.
    browser.click(button(20, 'value=wrong'))
    found = {i: v for i, v in enumerate(verdicts(browser)) if v}
    assert found == {2: 'wrong', 17: 'hard'}
    assert said(browser) == '1 of 15 looked at, 1 wrong'
    pressed = ('[...document.querySelectorAll("[aria-pressed=true]")]'
               '.map(button => button.value)')
    assert browser.run(pressed) == ['wrong', 'hard']
    browser.click('#bar [data-is=undo]')
    assert verdicts(browser)[20] == 'wrong'
    for _ in range(2):
        browser.click('#bar [data-is=undo]')
    assert said(browser) == '1 of 15 looked at, 1 wrong'
    assert verdicts(browser).count('') == 29
    row, = rows_of(save(browser))
    assert (row['verdict'], row['rank']) == ('wrong', '3')
    assert not browser.run('document.documentElement.scrollWidth > innerWidth')


def test_a_browser_that_keeps_nothing(opened):
    """It says so, and the file has all verdicts."""
    browser = opened()
    browser.run('Storage.prototype.setItem = () => { throw Error("full"); }')
    browser.press('1', '1', '2')
    assert said(browser) == (
        '2 of 15 looked at, 1 wrong. This browser keeps no verdicts: save '
        'before you leave')
    assert [row['verdict']
            for row in rows_of(save(browser))] == ['wrong', 'hard']


def test_verdicts_are_those_of_a_checkpoint(opened, page):
    """Other pages of it show them, as far as they show these images."""
    browser = opened()
    browser.press('1', 'ArrowRight', '1')
    browser.click(button(2, 'value=hard'))
    browser.click(button(7, 'value=wrong'))
    browser.open(page.parent / 'few' / page.name)
    assert verdicts(browser) == ['', 'wrong', 'hard', '', '', '']
    assert said(browser) == '2 of 3 looked at, 1 wrong'
    # What another tab has changed since then is saved, too.
    browser.run('localStorage.setItem(localStorage.key(0), '
                'localStorage.getItem(localStorage.key(0))'
                '.replaceAll("hard", "unsure"))')
    assert [row['verdict']
            for row in rows_of(save(browser))] == ['wrong', 'unsure']


def test_of_which_images_verdicts_are(page):
    """Those of other ones aren't shown on them."""
    path = page.with_name('iter_40.pth')
    checksum = read_checkpoint(str(path)).images_checksum
    assert f'data-key="{path} train {checksum}"' in page.read_text('utf-8')


def large(browser):
    """What is large, and over it."""
    return browser.run('[...document.querySelectorAll("#large[open] image")]'
                       '.map(image => image.dataset.layer)')


@LOOKS
def test_large_picture(opened, width, scheme):
    browser = opened(width, scheme)
    browser.click('.card:nth-child(2) [data-layer=prediction]')
    assert large(browser) == ['image', 'prediction']
    layers = []
    for _ in range(5):
        browser.press('l')
        layers.append(large(browser)[1:])
    assert layers == [['loss'], ['differences'], [], ['labels'],
                      ['prediction']]
    # A verdict leads to the next one, which is large, too.
    browser.press('1', '2', 'ArrowLeft')
    assert verdicts(browser)[:4] == ['', 'wrong', 'hard', '']
    title = browser.run('document.querySelector("#large .path").textContent')
    card = ('document.querySelector(".card:nth-child({}) .path").textContent')
    assert title == browser.run(card.format(3))
    browser.click('#large button[value=unsure]')
    browser.click('#large [data-is=next]')
    browser.press('Escape')
    # The browser tells of the end a little later.
    browser.wait('document.activeElement.matches(".card:nth-child(4)")')
    assert not large(browser)
    assert verdicts(browser)[:4] == ['', 'wrong', 'unsure', '']
    browser.press('Enter')
    assert large(browser) == ['image', 'prediction']
    browser.press('Enter')
    assert not large(browser)


def test_large_without_a_picture(opened):
    """What a screen reader says isn't of the image before."""
    browser = opened()
    browser.run('document.querySelector(".card:nth-child(2) .pictures")'
                '.remove()')
    label = 'document.querySelector("#large svg").getAttribute("aria-label")'
    browser.press('2', 'Enter')
    assert browser.run(label).startswith('labels of ')
    browser.press('ArrowRight')
    assert large(browser) == []
    assert browser.run(label).startswith('no picture of ')


def test_arrows_move_in_the_grid(opened):
    browser = opened()
    browser.press('2', 'ArrowDown', 'ArrowRight', 'ArrowLeft', 'ArrowUp')
    assert current(browser) == 0
    browser.press('ArrowDown')
    tops = browser.run('[...document.querySelectorAll(".card")]'
                       '.map(card => card.getBoundingClientRect().top)')
    assert current(browser) == next(i for i, top in enumerate(tops)
                                    if top > tops[0])


def test_keys_judge_the_card_that_has_the_focus(opened):
    browser = opened()
    browser.press('2')
    # As Tab does it.
    browser.run('document.querySelector(".card:nth-child(4) button").focus()')
    browser.press('1')
    assert verdicts(browser)[:5] == ['', '', '', 'wrong', '']
    assert current(browser) == 4


def test_a_key_that_is_held_down_judges_one_image(opened):
    browser = opened()
    browser.press('2', '1')
    for key in ('1', 'ArrowRight'):
        browser.run('document.activeElement.dispatchEvent(new KeyboardEvent('
                    f'"keydown", {{key: "{key}", repeat: true, '
                    'bubbles: true}))')
    assert current(browser) == 2
    assert said(browser) == '1 of 15 looked at, 1 wrong'


def test_by_pairs_of_classes(opened):
    browser = opened()

    def pairs(end='[data-end=highest]'):
        return browser.run(f'[...document.querySelectorAll("{end} .card")]'
                           '.map(card => card.dataset.pair)')

    by_rank = pairs()
    browser.run("""(() => {
        const order = document.querySelector('[data-is=order]');
        order.value = 'pairs';
        order.dispatchEvent(new Event('change'));
    })()""")
    assert sorted(pairs()) == sorted(by_rank) and len(set(by_rank)) > 1
    # Those of both ends count.
    counts = [pairs(end='').count(pair) for pair in dict.fromkeys(pairs())]
    assert counts == sorted(counts, reverse=True)
    # Each pair once, one after the other.
    assert pairs() == [
        pair for pair in dict.fromkeys(pairs())
        for _ in range(by_rank.count(pair))
    ]


def test_all_pictures_can_be_shown(opened):
    """At the size that the page gives them, image and layers alike."""
    sizes = opened().run("""Promise.all(
        [...document.querySelectorAll('.card image')].map(async each => {
            const image = new Image();
            image.src = each.href.baseVal;
            await image.decode();
            return [image.naturalWidth, image.naturalHeight];
        }))""")
    assert sizes == [[96, 96]] * 5 * 30


def test_without_javascript(opened):
    browser = opened(scripts=False)

    def seen(selector):
        return browser.run(f'[...document.querySelectorAll("{selector}")]'
                           '.filter(each => each.checkVisibility()).length')

    assert seen('button, #bar, dialog') == 0
    assert seen('.card svg') == 4 * 15
    browser.unfold('#gallery > details')
    assert seen('.card svg') == 4 * 30


def test_one_script_which_the_page_allows(page):
    text = page.read_text('utf-8')
    script, = re.findall(r'<script[^>]*>(.*?)</script>', text, re.S)
    digest = hashlib.sha256(script.encode()).digest()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1]
    assert policy == (
        "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{base64.b64encode(digest).decode()}'")
    assert 'http' not in re.sub(r'data:[^"]*|http-equiv', '', text)
    assert '<img src=x' not in text


def test_a_name_that_is_no_text(opened, page, tmp_path):
    """The bytes of a path that isn't UTF-8 come back as they are."""
    text = page.read_text('utf-8')
    row = re.search(r"data-row='(.*?)'", text)[1]
    changed = re.sub(r'^\[".*?", ', r'["b\\udce4.jpg", ', row)
    assert row != changed
    copy = tmp_path / 'copy.html'
    copy.write_text(text.replace(row, changed), 'utf-8')
    browser = opened()
    browser.open(copy)
    browser.click(button(0, 'value=wrong'))
    path = save(browser)
    assert b'\r\nb\xe4.jpg,wrong,1,' in path.read_bytes()
    assert read_review(path)[0].image == os.fsdecode(b'b\xe4.jpg')
