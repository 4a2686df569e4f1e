'use strict';
// Take verdicts on the images of a gallery, by clicks and by keys. The browser
// keeps the verdicts, and saves them as a file. Without this script the page is
// a gallery. Paths are text, never HTML.
(() => {
  const VERDICTS = ['wrong', 'hard', 'unsure'];
  const [gallery, bar, large] = ['gallery', 'bar', 'large'].map(
    id => document.getElementById(id));
  const find = (root, name) => root.querySelector(`[data-is="${name}"]`);
  const labels = [...gallery.querySelectorAll('#labels option')].map(
    option => option.value);
  const storageKey = `mmib-review-${gallery.dataset.key}`;

  let cards = [...gallery.querySelectorAll('.card')];
  let current = cards[0];
  let layer = 'labels';
  let verdicts = {};  // by number of the image
  let kept = true;  // whether the browser keeps them
  const done = [];  // for undo: a card, and what it had before

  const isFolded = card => card.closest('details:not([open])');
  const verdictOf = card => verdicts[card.dataset.number]?.verdict;
  const labelOf = card => verdicts[card.dataset.number]?.label || '';
  const layersOf = card => [...card.querySelectorAll('image')];

  function load() {
    if (!kept) return;
    try {
      verdicts = JSON.parse(localStorage.getItem(storageKey)) || {};
    } catch (error) {
      kept = false;
    }
  }

  function change({dataset: {number}}, entry) {
    load();  // another tab may have changed other verdicts
    const before = verdicts[number];
    verdicts[number] = entry;
    try {
      localStorage.setItem(storageKey, JSON.stringify(verdicts));
    } catch (error) {
      kept = false;
    }
    return before;
  }

  function judge(verdict, label, card = current) {
    const date = new Date().toISOString().replace(/\.\d+/, '');
    done.push([card, change(card, verdict && {verdict, date, label})]);
    show();
  }

  // The right class of a wrong image.

  function askLabel() {
    const input = (large.open ? large : current).querySelector('input');
    if (!input || input.hidden) return false;
    input.focus();
    input.select();
    return true;
  }

  function giveLabel(input) {
    const card = input.closest('.card') || current;
    const [text, lower] = [input.value, input.value.toLowerCase()];
    const found = labels.filter(name => name.toLowerCase().includes(lower));
    const label = !text || labels.includes(text) ? text :
      found.length === 1 && found[0];
    input.setCustomValidity(label !== false ? '' : !found.length ?
      'No class is called so' :
      `${found.length} classes have this: ${found.slice(0, 5).join('; ')}`);
    if (label === false) return false;
    if (label !== labelOf(card)) judge('wrong', label || undefined, card);
    return true;
  }

  function keyInInput(event, input) {
    // The key of the verdict may still be held down.
    if (event.repeat && event.key.length === 1) event.preventDefault();
    // People who write Chinese choose characters by these keys.
    if (event.isComposing || !['Enter', 'Escape'].includes(event.key)) return;
    event.preventDefault();
    const {predicted} = (input.closest('.card') || current).dataset;
    if (event.key === 'Escape') show();  // as it was
    else {
      input.value ||= predicted;
      if (!giveLabel(input)) {
        input.reportValidity();
        return;
      }
    }
    if (large.open) large.querySelector('.view').focus();
    step(1);
  }

  function undo() {
    if (!done.length) return;
    const [card, before] = done.pop();
    change(card, before);
    show();
    go(card);
  }

  // What the page shows.

  function show() {
    for (const card of cards) card.dataset.verdict = verdictOf(card) || '';
    for (const button of gallery.querySelectorAll('button[value]')) {
      const verdict = verdictOf(button.closest('.card') || current);
      button.setAttribute('aria-pressed', button.value === verdict);
    }
    for (const input of gallery.querySelectorAll('input')) {
      const card = input.closest('.card') || current;
      input.hidden = verdictOf(card) !== 'wrong';
      input.value = labelOf(card);
      const {predicted} = card.dataset;
      input.placeholder = predicted ? `Enter: ${predicted}` : 'right class';
      input.setCustomValidity('');
    }
    // The lowest are there to compare.
    const shown = cards.filter(card => !card.closest('details'));
    const judged = shown.filter(verdictOf).length;
    const wrong = shown.filter(card => verdictOf(card) === 'wrong').length;
    find(bar, 'count').textContent =
      `${judged} of ${shown.length} looked at, ${wrong} wrong` +
      (kept ? '' : '. This browser keeps no verdicts: save before you leave');
    find(bar, 'progress').value = judged / shown.length;
    find(bar, 'undo').disabled = !done.length;
    find(bar, 'save').disabled = !cards.some(verdictOf);
  }

  function drawLarge() {
    const layers = layersOf(current);
    const top = layers.find(each => each.dataset.layer === layer) || layers[0];
    const name = top ? top.dataset.layer : 'no picture';
    const svg = large.querySelector('svg');
    svg.replaceChildren(...layers.filter((each, i) => !i || each === top).map(
      each => each.cloneNode()));
    if (top) svg.setAttribute('viewBox', top.parentNode.getAttribute('viewBox'));
    const title = current.querySelector('.path').textContent;
    svg.setAttribute('aria-label', `${name} of ${title}`);
    find(large, 'title').textContent = title;
    find(large, 'shown').textContent = name;
    find(large, 'why').textContent =
      [...current.querySelectorAll('.why')].map(e => e.textContent).join('; ');
    show();
  }

  function openLarge() {
    drawLarge();
    large.showModal();
    // Not a button, which Enter would press.
    large.querySelector('.view').focus();
  }

  function nextLayer() {
    const names = layersOf(current).map(each => each.dataset.layer);
    layer = names[(names.indexOf(layer) + 1) % names.length] || layer;
    drawLarge();
  }

  // Ways between the cards, of which one is current.

  function go(card) {
    current = card;
    if (isFolded(card)) isFolded(card).open = true;
    if (large.open) drawLarge();
    else current.focus({preventScroll: true});
    current.scrollIntoView({block: 'nearest'});
  }

  function step(by) {
    const shown = cards.filter(card => !isFolded(card));
    const place = shown.indexOf(current) + by;
    go(shown[Math.min(Math.max(place, 0), shown.length - 1)]);
  }

  const columns = () =>
    large.open ? 1 :
    new Set([...current.parentNode.children].map(e => e.offsetLeft)).size;

  function sort() {
    const byPairs = find(bar, 'order').value === 'pairs';
    const pairs = cards.map(card => card.dataset.pair);
    const count = pair => pair && pairs.filter(each => each === pair).length;
    // The most frequent pair first, and those without a pair last.
    const order = ({dataset: a}, {dataset: b}) => byPairs && (
      count(b.pair) - count(a.pair) || a.pair.localeCompare(b.pair)) ||
      a.place - b.place;
    for (const list of gallery.querySelectorAll('.cards')) {
      list.append(...[...list.children].sort(order));
    }
    cards = [...gallery.querySelectorAll('.card')];
  }

  // The file.

  function cell(value) {
    // A spreadsheet would take these for formulas. The reader of the file
    // takes one apostrophe away.
    const text = String(value).replace(/^[=+\-@'\t\r]/, '\'$&');
    return /[",;\t\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  }

  function save() {
    load();
    const {ranking, images, file} = gallery.dataset;
    const rows = cards.filter(verdictOf).map(card => {
      const [image, rank, score] = JSON.parse(card.dataset.row);
      const {verdict, date} = verdicts[card.dataset.number];
      return [
        image, verdict, rank, score, date, ranking, images, labelOf(card)];
    }).sort((a, b) => a[2] - b[2]);
    rows.unshift([
      'image', 'verdict', 'rank', 'score', 'date', 'ranking', 'images',
      'label']);
    const text = rows.map(row => row.map(cell).join(',') + '\r\n').join('');
    // Bytes of a path that are no UTF-8 are surrogates, as in Python.
    const parts = text.split(/([\udc80-\udcff])/u).map(
      (part, i) => i % 2 ? Uint8Array.of(part.charCodeAt(0) & 255) : part);
    const link = document.createElement('a');
    link.href = URL.createObjectURL(new Blob(parts, {type: 'text/csv'}));
    link.download = file;
    link.click();
  }

  // Events.

  const byKey = {
    arrowright: () => step(1),
    arrowleft: () => step(-1),
    arrowdown: () => step(columns()),
    arrowup: () => step(-columns()),
    enter: () => large.open ? large.close() : openLarge(),
    l: () => large.open ? nextLayer() : openLarge(),
    u: undo,
  };
  VERDICTS.forEach((verdict, i) => {
    byKey[i + 1] = () => {
      judge(verdict, verdict === 'wrong' && labelOf(current) || undefined);
      if (!askLabel()) step(1);
    };
  });
  const byName = {
    look: openLarge, close: () => large.close(), layer: nextLayer, undo, save,
    before: byKey.arrowleft, next: byKey.arrowright,
  };

  document.addEventListener('keydown', event => {
    const {target, altKey, ctrlKey, metaKey, shiftKey} = event;
    const card = target.closest('.card');
    if (target.matches('input')) return keyInInput(event, target);
    const key = event.key.toLowerCase();
    const action = !ctrlKey && !metaKey ? byKey[key] :
      key === 'z' && !shiftKey && undo;
    const inUse = target.closest('select') ||
      key === 'enter' && target.closest('button, a, summary');
    // A key that is held down only moves.
    const held = event.repeat && !key.startsWith('arrow');
    if (!action || inUse || altKey || held) return;
    // Tab may have led to another card.
    current = card || current;
    if (card || large.open) action();
    // Elsewhere a key leads to the card first, so that nothing is judged that
    // isn't seen; and arrows scroll.
    else if (VERDICTS[key - 1] || gallery.contains(target)) go(current);
    else return;
    event.preventDefault();
  });

  gallery.addEventListener('click', ({target, detail}) => {
    const card = target.closest('.card');
    current = card || current;
    // A button that a key has pressed keeps the focus.
    if (target.matches('input')) return;
    if (card && detail) card.focus({preventScroll: true});
    const button = target.closest('button');
    const picture = target.closest('.pictures svg');
    if (picture) {
      layer = picture.querySelector('image').dataset.layer;
      openLarge();
    } else if (button && button.value) {
      judge(button.value === verdictOf(current) ? undefined : button.value);
      askLabel();
    } else if (button) byName[button.dataset.is]();
  });
  // By the mouse a class is taken from the list, or left half written.
  gallery.addEventListener('change', ({target}) => {
    if (target.matches('input') && !giveLabel(target)) show();
  });
  large.addEventListener('close', () => go(current));
  find(bar, 'order').addEventListener('change', sort);

  cards.forEach((card, place) => {
    card.append(large.querySelector('[role=group]').cloneNode(true));
    card.dataset.place = place;
    card.tabIndex = 0;
  });
  find(bar, 'order').hidden = !cards.some(card => card.dataset.pair);
  bar.hidden = false;
  load();
  show();
})();
