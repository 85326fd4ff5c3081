// What the site's pages do beyond being read: theme, copy, enlarged plots, results on request, ladders for the
// reader's GPU, words explained.
"use strict";

(() => {
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const make = (name, properties = {}, ...children) => {
    const element = Object.assign(document.createElement(name), properties);
    element.append(...children);
    return element;
  };
  const stored = (key, value) => {
    try {
      if (value === undefined) return localStorage.getItem(key);
      if (value) localStorage.setItem(key, value); else localStorage.removeItem(key);
    } catch { /* private windows keep nothing */ }
  };

  // --- Light, dark, or what the system says
  const root = document.documentElement, themes = ["", "light", "dark"];
  const button = document.querySelector("button.theme"), night = matchMedia("(prefers-color-scheme: dark)");
  function dress(frame) {  // a page within the page, such as a player's
    const inner = frame.contentDocument?.documentElement;
    if (inner) inner.dataset.theme = root.dataset.theme ?? (night.matches ? "dark" : "light");
  }
  const frames = all("iframe[srcdoc]");
  frames.forEach(frame => frame.addEventListener("load", () => dress(frame)));
  function choose(theme) {
    if (theme) root.dataset.theme = theme; else delete root.dataset.theme;
    frames.forEach(dress);
    const name = `Theme: ${theme || "as the system"}`;
    button.querySelector(".unseen").textContent = name;
    button.title = name;
  }
  button.addEventListener("click", () => {
    const next = themes[(themes.indexOf(root.dataset.theme ?? "") + 1) % themes.length];
    choose(next);
    stored("labkit-theme", next);
  });
  choose(root.dataset.theme ?? "");
  button.hidden = false;

  // --- The menu of lessons closes as one expects
  const menu = document.querySelector("details.menu");
  document.addEventListener("click", event => { if (!menu.contains(event.target)) menu.open = false; });
  menu.addEventListener("keydown", event => {
    if (event.key === "Escape" && menu.open) {
      menu.open = false;
      menu.querySelector("summary").focus();
    }
  });
  all(".toc-small a").forEach(link => link.addEventListener("click", () => { link.closest("details").open = false; }));

  // --- Code can be copied
  for (const block of all(".highlight")) {
    const copy = make("button", { type: "button", className: "copy", textContent: "Copy" });
    copy.addEventListener("click", async () => {
      const text = block.querySelector("pre").textContent;
      try { await navigator.clipboard.writeText(text); } catch {
        const area = make("textarea", { value: text, className: "unseen" });
        document.body.append(area);
        area.select();
        document.execCommand("copy");
        area.remove();
        copy.focus();
      }
      copy.textContent = "Copied";
      setTimeout(() => { copy.textContent = "Copy"; }, 1500);
    });
    block.append(copy);
  }

  // --- What waits for a prediction: all of it at once, on paper, or where a link leads into it; guesses are kept
  const results = all("details.result"), reveal = document.querySelector("button.reveal");
  function showAll(open) {
    results.forEach(one => { one.open = open; });
    reveal.setAttribute("aria-pressed", open);
    reveal.textContent = open ? "Hide all results" : "Show all results";
  }
  if (reveal) {
    reveal.hidden = false;
    reveal.addEventListener("click", () => showAll(reveal.getAttribute("aria-pressed") !== "true"));
    addEventListener("beforeprint", () => all("main details").forEach(one => { one.open = true; }));
  }
  const lesson = location.pathname.replace(/^.*\/(?:\d+_)?|\.html$/g, "");
  for (const input of all(".guess input")) {
    const key = `labkit-guess-${lesson}-${input.closest(".prediction").id}`;
    input.value = stored(key) ?? "";
    input.addEventListener("input", () => stored(key, input.value));
  }
  function openTo(element) {
    for (let one = element?.closest("details"); one; one = one.parentElement.closest("details")) one.open = true;
  }
  const target = () => document.getElementById(decodeURIComponent(location.hash.slice(1)));
  addEventListener("hashchange", () => openTo(target()));
  openTo(target());

  // --- A hit of the search may be in what is folded: the words that it was found by lead there
  function openFound() {
    let words;
    try {
      words = JSON.parse(sessionStorage.getItem("labkit-found") ?? "[]");
      sessionStorage.removeItem("labkit-found");
    } catch { return; }
    const heading = target(), open = all("main .prose").filter(one => !one.closest("details.result"));
    if (!words.length || !results.length) return;
    const within = one => !heading || heading.compareDocumentPosition(one) & Node.DOCUMENT_POSITION_FOLLOWING;
    const next = heading && all("main :is(h2, h3, h4, h5, h6)").find(one => one !== heading && within(one));
    const here = one => within(one) && !(next && next.compareDocumentPosition(one) & Node.DOCUMENT_POSITION_FOLLOWING);
    const has = one => words.filter(word => one.textContent.toLowerCase().includes(word)).length;
    const most = Math.max(0, ...open.filter(here).map(has));
    const best = results.filter(here).sort((a, b) => has(b) - has(a))[0];
    if (best && has(best) > most) {
      best.open = true;
      best.closest(".prediction").scrollIntoView();
    }
  }
  document.addEventListener("click", event => {
    const hit = event.target.closest("#search_found a");
    if (!hit) return;
    const words = new Set(all("mark", hit).map(mark => mark.textContent.toLowerCase()));
    try { sessionStorage.setItem("labkit-found", JSON.stringify([...words])); } catch { return; }
    if (hit.pathname === location.pathname) setTimeout(openFound);
  });
  openFound();

  // --- Plots are enlarged on request
  const links = all("a.enlarge");
  if (links.length && window.HTMLDialogElement) {
    const image = make("img"), sheet = make("div", { className: "sheet", tabIndex: 0 }, image);
    const close = make("button", { type: "button", textContent: "Close" });
    const dialog = make("dialog", { className: "zoom", ariaLabel: "Plot, enlarged" }, close, sheet);
    document.body.append(dialog);
    close.addEventListener("click", () => dialog.close());
    sheet.addEventListener("click", event => { if (event.target !== image || innerWidth > 700) dialog.close(); });
    for (const link of links) {
      link.addEventListener("click", event => {
        if (event.ctrlKey || event.metaKey || event.shiftKey) return;
        event.preventDefault();
        const shown = all("img", link).find(one => one.checkVisibility?.() ?? one.offsetParent) ?? link.querySelector("img");
        image.src = shown.src;
        image.alt = shown.alt;
        const own = Number(shown.getAttribute("width")) || shown.naturalWidth / 2;  // of a PNG, two pixels for one
        image.style.width = `max(100%, ${Math.max(own, 760)}px)`;
        dialog.showModal();
        sheet.scrollTo(0, 0);
      });
    }
  }

  // --- Ladders show the reader's GPU: what was recorded on it, or the bound by its data sheet above the course's plot
  const ladders = all(".ladder");
  function showGpu(gpu) {
    for (const ladder of ladders) {
      const select = ladder.querySelector("select"), panels = all("[data-gpu]", ladder);
      select.value = gpu;
      if (select.selectedIndex < 0) select.value = "";  // a GPU that this ladder does not know
      panels.forEach(one => { one.hidden = one.dataset.gpu !== select.value; });
      ladder.querySelector(".default").hidden = panels.some(one => !one.hidden && one.matches(".instead"));
    }
  }
  for (const ladder of ladders) {
    ladder.querySelector("label").hidden = false;
    ladder.addEventListener("change", event => {
      const before = event.target.getBoundingClientRect().top;
      showGpu(event.target.value);
      stored("labkit-gpu", event.target.value);
      scrollBy(0, event.target.getBoundingClientRect().top - before);  // what was chosen stays where it was
    });
  }
  showGpu(stored("labkit-gpu") ?? "");

  // --- Words of the field are explained where they are used first
  const terms = all("a.term");
  if (terms.length) {
    const box = make("div", { id: "tip_box", hidden: true, ariaHidden: "true" });
    document.body.append(box);
    let shownFor = null, waiting = 0;
    const hide = () => { box.hidden = true; shownFor = null; };
    function show(term) {
      clearTimeout(waiting);
      box.textContent = document.getElementById(term.getAttribute("aria-describedby")).textContent;
      box.hidden = false;
      shownFor = term;
      const at = term.getBoundingClientRect(), width = box.offsetWidth, height = box.offsetHeight;
      const left = Math.max(8, Math.min(at.left, document.documentElement.clientWidth - width - 8));
      const below = at.bottom + 6 + height < innerHeight || at.top < height + 70;
      box.style.left = `${left + scrollX}px`;
      box.style.top = `${(below ? at.bottom + 6 : at.top - 6 - height) + scrollY}px`;
    }
    const soon = () => { waiting = setTimeout(hide, 200); };  // time to move onto the box
    for (const term of terms) {
      term.addEventListener("pointerenter", event => { if (event.pointerType !== "touch") show(term); });
      term.addEventListener("pointerleave", soon);
      term.addEventListener("focus", () => show(term));
      term.addEventListener("blur", hide);
      let touched = false;  // the first tap explains, the second follows the link
      term.addEventListener("pointerdown", event => { touched = event.pointerType === "touch" && shownFor !== term; });
      term.addEventListener("click", event => {
        if (touched) { event.preventDefault(); show(term); }
        touched = false;
      });
    }
    box.addEventListener("pointerenter", () => clearTimeout(waiting));
    box.addEventListener("pointerleave", soon);
    document.addEventListener("keydown", event => { if (event.key === "Escape") hide(); });
    document.addEventListener("pointerdown", event => {
      if (shownFor && !box.contains(event.target) && !shownFor.contains(event.target)) hide();
    });
  }

  // --- The section that is being read, in the table of contents
  const entries = new Map(all(".toc a").map(link => [decodeURIComponent(link.hash.slice(1)), link]));
  if (entries.size) {
    const headings = [...entries.keys()].map(id => document.getElementById(id)).filter(Boolean);
    let current = null;
    const mark = () => {
      const above = headings.filter(heading => heading.getBoundingClientRect().top < 120).pop();
      const link = above ? entries.get(above.id) : null;
      if (link === current) return;
      current?.removeAttribute("aria-current");
      link?.setAttribute("aria-current", "true");
      current = link;
    };
    addEventListener("scroll", () => requestAnimationFrame(mark), { passive: true });
    mark();
  }

  // --- What scrolls sideways can be scrolled by keyboard
  function reachable() {
    for (const box of all(".scroll, .rich, .outputs > pre, .highlight pre, .formula")) {
      const scrolls = box.scrollWidth > box.clientWidth + 1;
      box.classList.toggle("scrolls", scrolls);
      if (scrolls) box.tabIndex = 0; else if (box.tabIndex === 0) box.removeAttribute("tabindex");
    }
  }
  addEventListener("resize", reachable);
  addEventListener("load", reachable);
  results.forEach(one => one.addEventListener("toggle", reachable));
  reachable();
})();
