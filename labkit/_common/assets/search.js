// The search of the site: BM25 over the passages in passages.js, as labkit/course/search.py has it in Python.
"use strict";

(() => {
  const SATURATION = 1.2, LENGTH = 0.75, TITLE = 3, MOST = 12;
  const site = new URL(".", document.currentScript.src);  // pages of exercises lie in a folder of their own
  const box = document.querySelector(".search"), input = box.querySelector("input");
  const found = document.getElementById("search_found"), status = found.querySelector("p"), list = found.querySelector("ol");
  let passages = null, loading = false, asking = new Set();

  const parts = text => text.match(/[\p{L}\p{N}]+/gu) ?? [];
  const stem = word => {
    const small = word.toLowerCase();
    return small.length > 3 && small.endsWith("s") && !small.endsWith("ss") ? small.slice(0, -1) : small;
  };
  const words = text => parts(text).map(stem);

  // passages.js calls this. It is loaded when the box is first used.
  window.labkitPassages = ([common, entries]) => {
    asking = new Set(common);
    passages = entries.map(([title, where, link, text]) => {
      const all = [...Array(TITLE).fill(words(title)).flat(), ...words(text)], counts = new Map();
      for (const word of all) counts.set(word, (counts.get(word) ?? 0) + 1);
      return { title, where, link, text, counts, length: all.length };
    });
    show();
  };

  function load() {
    if (loading) return;
    loading = true;
    const script = document.createElement("script");
    script.src = new URL("passages.js", site);
    script.onerror = () => { status.textContent = "The passages could not be read."; };
    document.head.append(script);
  }

  // A word that no passage has, and may not be typed to its end, stands for all that begin with it.
  function search(query) {
    const asked = [...new Set(words(query))];
    const counting = asked.filter(word => !asking.has(word)), scores = new Map(), rarities = new Map();
    const mean = passages.reduce((sum, one) => sum + one.length, 0) / Math.max(1, passages.length);
    const beginning = word => one => {
      let count = 0;
      for (const [has, times] of one.counts) if (has.startsWith(word)) count += times;
      return count;
    };
    for (const word of counting.length ? counting : asked) {
      const counted = often => passages.map(one => [one, often(one)]).filter(([, count]) => count);
      let having = counted(one => one.counts.get(word) ?? 0);
      if (!having.length && word.length > 2) having = counted(beginning(word));
      const rarity = Math.log(1 + (passages.length - having.length + 0.5) / (having.length + 0.5));
      rarities.set(word, rarity);
      for (const [one, count] of having) {
        const score = rarity * count * (SATURATION + 1) / (count + SATURATION * (1 - LENGTH + LENGTH * one.length / mean));
        scores.set(one, (scores.get(one) ?? 0) + score);
      }
    }
    const best = new Map();  // of a section, its best passage
    for (const [one] of [...scores].sort((a, b) => b[1] - a[1])) {
      const key = one.link || one.where;
      if (!best.has(key)) best.set(key, one);
    }
    return [[...best.values()], [...rarities.keys()].sort((a, b) => rarities.get(b) - rarities.get(a))];
  }

  const fits = (word, asked) => asked.some(one => stem(word) === one || (one.length > 2 && stem(word).startsWith(one)));

  // The text around the rarest word that was asked for, the words marked. asked: the rarest first.
  function excerpt(text, asked) {
    const line = document.createElement("small"), pieces = text.split(/([\p{L}\p{N}]+)/u);
    const places = asked.map(word => pieces.findIndex((piece, at) => at % 2 && fits(piece, [word])));
    const first = Math.max(0, (places.find(place => place >= 0) ?? 0) - 16);
    if (first) line.append("... ");
    pieces.slice(first, first + 56).forEach((piece, at) => {
      if ((first + at) % 2 && fits(piece, asked)) {
        const mark = document.createElement("mark");
        mark.textContent = piece;
        line.append(mark);
      } else line.append(piece);
    });
    if (first + 56 < pieces.length) line.append(" ...");
    return line;
  }

  function entry(one, asked) {
    const item = document.createElement("li"), whole = document.createElement(one.link ? "a" : "div");
    const title = document.createElement("strong"), where = document.createElement("small");
    title.textContent = one.title;
    where.textContent = one.where;
    if (one.link) whole.href = new URL(one.link, site);
    whole.append(title, where, excerpt(one.text, asked));
    item.append(whole);
    return item;
  }

  function show() {
    const query = input.value.trim();
    found.hidden = !query;
    if (!query || !passages) return;
    const [hits, asked] = search(query);
    status.textContent = hits.length ? `${hits.length} ${hits.length === 1 ? "passage" : "passages"}, by words` : "Nothing has these words.";
    list.replaceChildren(...hits.slice(0, MOST).map(one => entry(one, asked)));
    found.scrollTop = 0;
  }

  function close() { found.hidden = true; }

  input.addEventListener("focus", () => { load(); show(); });
  input.addEventListener("input", show);
  document.addEventListener("click", event => { if (!box.contains(event.target)) close(); });
  list.addEventListener("click", event => { if (event.target.closest("a")) close(); });
  document.addEventListener("keydown", event => {
    const links = [...list.querySelectorAll("a")], at = links.indexOf(document.activeElement);
    if (event.key === "/" && !event.ctrlKey && !event.metaKey && !/^(INPUT|TEXTAREA)$/.test(document.activeElement.tagName)) input.focus();
    else if (event.key === "Escape" && box.contains(document.activeElement)) { close(); input.blur(); }
    else if (event.key === "ArrowDown" && box.contains(document.activeElement)) links[Math.min(at + 1, links.length - 1)]?.focus();
    else if (event.key === "ArrowUp" && at >= 0) (links[at - 1] ?? input).focus();
    else return;
    event.preventDefault();
  });

  box.hidden = false;
  const asked = new URLSearchParams(location.search).get("q");  // index.html?q=bank+conflicts
  if (asked) { input.value = asked; load(); show(); }
})();
