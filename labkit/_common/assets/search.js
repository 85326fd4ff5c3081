// The search of the site: BM25 over the passages in passages.js, as labkit/course/search.py has it in Python.
"use strict";

(() => {
  const SATURATION = 1.2, LENGTH = 0.75, NAMED = 1, TERM = 4, PAIR = 0.25, EXACT = 2, SHORTEST = 40, MOST = 12;
  const site = new URL(".", document.currentScript.src);  // pages of exercises lie in a folder of their own
  const box = document.querySelector(".search"), input = box.querySelector("input");
  const found = document.getElementById("search_found"), status = found.querySelector("p"), list = found.querySelector("ol");
  let passages = null, terms = [], loading = false, asking = new Set();

  const parts = text => text.match(/[\p{L}\p{N}]+/gu) ?? [];
  const stem = word => {
    let small = word.toLowerCase();
    if (small.length > 3 && small.endsWith("s") && !small.endsWith("ss")) small = small.slice(0, -1);
    for (const ending of ["ing", "ed"]) {
      if (!small.endsWith(ending) || small.length <= ending.length + 2) continue;
      small = small.slice(0, -ending.length);
      if (small.at(-1) === small.at(-2) && !"lsz".includes(small.at(-1))) small = small.slice(0, -1);
      break;
    }
    return small.length > 3 && small.endsWith("e") ? small.slice(0, -1) : small;
  };
  const words = text => parts(text).map(stem);
  const pairsOf = list => list.slice(1).map((word, at) => `${list[at]} ${word}`);

  // passages.js calls this. It is loaded when the box is first used.
  window.labkitPassages = ([common, entries, glossary]) => {
    asking = new Set(common);
    passages = entries.map(([title, where, link, text, heading, named, weight]) => {
      const lesson = words(heading ? title.slice(0, -heading.length) : "");
      const head = words(heading || title), body = words(text), counts = new Map();
      const add = (word, times) => counts.set(word, (counts.get(word) ?? 0) + times);
      for (const word of [...lesson, ...head, ...body]) add(word, 1);
      for (const word of new Set(named.flatMap(words))) add(word, TERM);
      const names = [head, ...named.map(words)].map(list => new Set(list.filter(word => !asking.has(word))));
      return { title, where, link, text, counts, weight, length: Math.max(SHORTEST, body.length),
        pairs: new Set([...pairsOf(head), ...pairsOf(body)]), names: names.filter(name => name.size) };
    });
    terms = glossary.map(([names, link, text]) => ({ title: names[0], where: "Glossary", link,
      text: `${names.join(", ")}. ${text}`, names: names.map(words) }));
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
    const inOrder = words(query), all = [...new Set(inOrder)], counting = all.filter(word => !asking.has(word));
    const asked = new Set(counting.length ? counting : all), scores = new Map(), matched = new Map(), rarities = new Map();
    const mean = passages.reduce((sum, one) => sum + one.length, 0) / Math.max(1, passages.length);
    const rarityOf = having => Math.log(1 + (passages.length - having + 0.5) / (having + 0.5));
    const add = (one, score) => scores.set(one, (scores.get(one) ?? 0) + score);
    const share = name => [...name].filter(word => asked.has(word)).length / name.size;
    const beginning = word => one => {
      let count = 0;
      for (const [has, times] of one.counts) if (has.startsWith(word)) count += times;
      return count;
    };
    for (const word of asked) {
      const counted = often => passages.map(one => [one, often(one)]).filter(([, count]) => count);
      let having = counted(one => one.counts.get(word) ?? 0);
      if (!having.length && word.length > 2) having = counted(beginning(word));
      const rarity = rarityOf(having.length);
      rarities.set(word, rarity);
      for (const [one, count] of having) {
        add(one, rarity * count * (SATURATION + 1) / (count + SATURATION * (1 - LENGTH + LENGTH * one.length / mean)));
        add(one, rarity * NAMED * Math.max(0, ...one.names.filter(name => name.has(word)).map(share)));
        matched.set(one, (matched.get(one) ?? 0) + 1);
      }
    }
    for (const pair of new Set(pairsOf(inOrder).filter(pair => pair.split(" ").some(word => asked.has(word))))) {
      const having = passages.filter(one => one.pairs.has(pair));
      for (const one of having) add(one, PAIR * rarityOf(having.length));
    }
    const exactly = query.trim().toLowerCase();
    const weight = one => one.title.toLowerCase() === exactly ? EXACT : one.weight;
    const whole = one => [one, scores.get(one) * weight(one) * (1 + (matched.get(one) ?? 0) / asked.size) / 2];
    const best = new Map();  // of a section, its best passage
    for (const [one] of passages.filter(one => scores.has(one)).map(whole).sort((a, b) => b[1] - a[1])) {
      const key = `${one.title} ${one.where} ${one.link}`;
      if (!best.has(key)) best.set(key, one);
    }
    return [[...best.values()], [...rarities.keys()].sort((a, b) => rarities.get(b) - rarities.get(a))];
  }

  // Terms of the glossary that the query asks for, or begins to.
  function definitions(query) {
    const asked = new Set(words(query)), small = query.toLowerCase().split(/\s+/).join(" ");
    const found = new Set(), covered = new Set();
    const names = terms.flatMap(term => term.names.map(name => [name, term])).sort((a, b) => b[0].length - a[0].length);
    for (const [name, term] of names) {
      if (!name.every(word => asked.has(word)) || name.every(word => covered.has(word))) continue;
      found.add(term);
      name.forEach(word => covered.add(word));
    }
    if ([...asked].some(word => !asking.has(word) && !covered.has(word))) found.clear();
    terms.filter(term => small.length > 2 && term.title.toLowerCase().startsWith(small)).forEach(term => found.add(term));
    return [...found].slice(0, 2);
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
    const defined = definitions(query);
    status.textContent = hits.length ? `${hits.length} ${hits.length === 1 ? "passage" : "passages"}, by words`
      : defined.length ? "In the glossary" : "Nothing has these words.";
    list.replaceChildren(...[...defined, ...hits.slice(0, MOST)].map(one => entry(one, asked)));
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
