# Copyright (c) mmib contributors. All rights reserved.
"""Drives a real Label Studio by its API."""
import json
import os
import socket
import subprocess
import time
import urllib.request


class Server:
    """Label Studio on a port of its own, with an empty data base."""

    TOKEN = '0123456789' * 4

    def __init__(self, program, folder, images):
        with socket.socket() as free:
            free.bind(('localhost', 0))
            port = free.getsockname()[1]
        self.address = f'http://localhost:{port}'
        self.process = subprocess.Popen(
            [
                program, 'start', '--no-browser', '--port',
                str(port), '--username', 'somebody@example.org', '--password',
                'secret-1', '--user-token', self.TOKEN
            ],
            env=dict(
                os.environ,
                PYTHONPATH='',
                SENTRY_DSN='',
                FRONTEND_SENTRY_DSN='',
                LABEL_STUDIO_ENABLE_LEGACY_API_TOKEN='true',
                LABEL_STUDIO_BASE_DATA_DIR=str(folder),
                LABEL_STUDIO_LOCAL_FILES_SERVING_ENABLED='true',
                LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT=str(images)),
            stdout=open(folder / 'log', 'w'),
            stderr=subprocess.STDOUT)

    def wait(self):
        while True:
            try:
                return self.ask('GET', '/health')
            except OSError:
                assert self.process.poll() is None
                time.sleep(1)

    def ask(self, method, path, content=None):
        request = urllib.request.Request(
            self.address + path,
            json.dumps(content).encode() if content else None, {
                'Authorization': f'Token {self.TOKEN}',
                'Content-Type': 'application/json'
            },
            method=method)
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.read()

    def json(self, *arguments):
        return json.loads(self.ask(*arguments))
