# Copyright (c) mmib contributors. All rights reserved.
"""Drives a real browser by keys and clicks, over Chromium's DevTools protocol
through a pipe."""
import json
import os
import subprocess
import time
from pathlib import Path

from ..test_report.browser import CHROMIUM, OPTIONS

# Codes of keys by name.
KEYS = dict(
    ArrowLeft=37,
    ArrowUp=38,
    ArrowRight=39,
    ArrowDown=40,
    Enter=13,
    Escape=27,
    Tab=9)


class Browser:
    """A browser with one page.

    Args:
        folder (Path): Where it writes, downloads among it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.downloads = folder / 'downloads'
        self.errors = []
        self._last = 0
        commands, self._commands = os.pipe()
        self._answers, answers = os.pipe()
        self._process = subprocess.Popen([
            'bash', '-c', f'exec "$0" "$@" 3<&{commands} 4>&{answers}',
            CHROMIUM, *OPTIONS, '--remote-debugging-pipe',
            f'--user-data-dir={folder / "profile"}', 'about:blank'
        ],
                                         stdout=subprocess.DEVNULL,
                                         stderr=subprocess.DEVNULL,
                                         pass_fds=[commands, answers])
        os.close(commands)
        os.close(answers)
        self._rest = b''
        self._session = None
        page = next(
            each for each in self('Target.getTargets')['targetInfos']
            if each['type'] == 'page')
        self(
            'Browser.setDownloadBehavior',
            behavior='allow',
            downloadPath=str(self.downloads))
        self._session = self(
            'Target.attachToTarget', targetId=page['targetId'],
            flatten=True)['sessionId']
        for domain in ('Page', 'Runtime', 'Log', 'Network'):
            self(f'{domain}.enable')

    def close(self) -> None:
        os.close(self._commands)
        os.close(self._answers)
        self._process.terminate()
        self._process.wait(30)

    def __call__(self, method, **params):
        """Send a command, and return its result."""
        self._last += 1
        command = dict(id=self._last, method=method, params=params)
        if self._session:
            command['sessionId'] = self._session
        os.write(self._commands, json.dumps(command).encode() + b'\0')
        while True:
            message = self._receive()
            if message.get('id') == self._last:
                assert 'error' not in message, message['error']
                return message['result']
            self._note(message)

    def _receive(self):
        while b'\0' not in self._rest:
            data = os.read(self._answers, 1 << 20)
            assert data, 'the browser has ended'
            self._rest += data
        message, _, self._rest = self._rest.partition(b'\0')
        return json.loads(message)

    def _note(self, message) -> None:
        """Remember what goes wrong, and requests."""
        name, params = message['method'], message.get('params', {})
        if name in ('Runtime.exceptionThrown', 'Runtime.consoleAPICalled'):
            self.errors.append(params)
        elif name == 'Log.entryAdded':
            # The browser's own remarks are no errors.
            if params['entry']['level'] in ('warning', 'error'):
                self.errors.append(params)
        elif name == 'Network.requestWillBeSent':
            url = params['request']['url']
            if not url.startswith(('data:', 'file:', 'blob:')):
                self.errors.append(url)

    def open(self, path, width=1280, scheme='light', scripts=True) -> None:
        """Open a page from disk."""
        self(
            'Emulation.setDeviceMetricsOverride',
            width=width,
            height=900 if width > 600 else 800,
            deviceScaleFactor=1,
            mobile=width < 600)
        self(
            'Emulation.setEmulatedMedia',
            features=[dict(name='prefers-color-scheme', value=scheme)])
        self('Emulation.setScriptExecutionDisabled', value=not scripts)
        self('Page.navigate', url=Path(path).resolve().as_uri())
        self.wait('document.readyState === "complete" && '
                  'location.href !== "about:blank"')

    def run(self, expression):
        """The value of an expression of JavaScript, also of a promise."""
        answer = self(
            'Runtime.evaluate',
            expression=expression,
            awaitPromise=True,
            returnByValue=True)
        assert 'exceptionDetails' not in answer, answer
        return answer['result'].get('value')

    def wait(self, expression) -> None:
        """Wait until an expression is true."""
        end = time.time() + 60
        while not self.run(expression):
            assert time.time() < end, expression
            time.sleep(0.02)

    def press(self, *keys, control=False) -> None:
        for key in keys:
            code = KEYS.get(key, ord(key[0].upper()))
            event = dict(
                key=key,
                code=key,
                windowsVirtualKeyCode=code,
                modifiers=2 * control)
            text = '\r' if key == 'Enter' else key
            if not control and (key == 'Enter' or key not in KEYS):
                event['text'] = text
            self('Input.dispatchKeyEvent', type='keyDown', **event)
            self('Input.dispatchKeyEvent', type='keyUp', **event)

    def click(self, selector) -> None:
        """Scroll to an element and click it, once it lies still: what was
        unfolded or scrolled moves for some frames."""
        place = """(() => {
            const found = document.querySelector(%s);
            found.scrollIntoView({block: 'center', behavior: 'instant'});
            const box = found.getBoundingClientRect();
            return [box.x + box.width / 2, box.y + box.height / 2];
        })()""" % json.dumps(selector)
        last, end = None, time.time() + 60
        while (x_y := self.run(place)) != last:
            assert time.time() < end, selector
            last = x_y
            time.sleep(0.1)
        x, y = last
        for kind in ('mousePressed', 'mouseReleased'):
            self(
                'Input.dispatchMouseEvent',
                type=kind,
                x=x,
                y=y,
                button='left',
                clickCount=1)

    def unfold(self, selector) -> None:
        """Click the summary of an element, and wait until it is open."""
        self.click(f'{selector} > summary')
        self.wait(f'document.querySelector({json.dumps(selector)}).open')
