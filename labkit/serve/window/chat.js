// A chat with the model through the API that all clients use, and a dozen requests at once.

const conversation = [];
let answering = null;
const FIELDS = ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed", "presence_penalty", "frequency_penalty"];

function sampling() {
  const wanted = {};
  for (const name of FIELDS) {
    const value = $(name).value.trim();
    if (value !== "") wanted[name] = Number(value);
  }
  return wanted;
}

function bubble(role, text) {
  const item = made("li", role), body = made("span", "text", text);
  const who = made("span", "off", role === "user" ? "You: " : role === "wrong" ? "Error: " : "Model: ");
  item.append(who, body);
  const list = $("messages"), atEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 60;
  list.append(item);
  if (atEnd || role === "user") list.scrollTop = list.scrollHeight;
  return {item, body};
}

async function modelName() {
  return live.model ||= (await (await ask("v1/models")).json()).data[0].id;
}

// The pieces of an answer, as they come: [text, chunk].
async function* pieces(signal) {
  const common = {...sampling(), stream: true, stream_options: {include_usage: true}, model: await modelName()};
  let chat = live.chat !== false;
  let response;
  if (chat) {
    try {
      response = await ask("v1/chat/completions", {...common, messages: conversation}, signal);
    } catch (error) {
      if (!(error.status >= 400 && error.status < 500 && /template/i.test(`${error.code} ${error.message}`))) throw error;
      chat = live.chat = false;
    }
  }
  if (!chat) response = await ask("v1/completions", {...common, prompt: conversation.map((each) => each.content).join("\n")}, signal);
  for await (const [, data] of events(response)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Error(chunk.error.message);
    const choice = chunk.choices?.[0];
    yield [choice ? (chat ? choice.delta?.content : choice.text) || "" : "", chunk];
  }
}

async function answer() {
  const stop = answering = new AbortController();
  const {item, body} = bubble("answer", "");
  item.classList.add("streams");
  const began = performance.now();
  let first = null, text = "", reason = null, usage = null, seen = 0;
  busy(true);
  try {
    for await (const [piece, chunk] of pieces(stop.signal)) {
      if (piece) {
        first ??= performance.now();
        seen += 1;
        text += piece;
        const list = $("messages"), atEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 60;
        body.textContent = text;
        if (atEnd) list.scrollTop = list.scrollHeight;
      }
      reason = chunk.choices?.[0]?.finish_reason || reason;
      usage = chunk.usage || usage;
    }
  } catch (error) {
    if (error.name === "AbortError") reason = "stopped";
    else if (error.status === 401) bubble("wrong", "The server wants an API key: enter it below, and send again.");
    else bubble("wrong", error.message);
  } finally {
    item.classList.remove("streams");
    const tokens = usage?.completion_tokens, seconds = (performance.now() - (first ?? began)) / 1000;
    if (first !== null) {
      const facts = [tokens ? count(tokens, "token") : "", tokens > 1 ? `${((tokens - 1) / seconds).toFixed(1)} tokens/s` : "",
        `first after ${ms(first - began)}`, {stop: "", length: "max_tokens reached", stopped: "stopped"}[reason] ?? reason];
      item.append(made("span", "facts", facts.filter(Boolean).join(" · ")));
      conversation.push({role: "assistant", content: text});
      setText($("spoken"), `The model answered: ${text.slice(0, 500)}`);
    } else {
      if (reason === "stopped" || reason) item.append(made("span", "facts", reason === "stopped" ? "stopped" : "an empty answer"));
      else item.remove();
      conversation.pop();
    }
    $("messages").scrollTop = $("messages").scrollHeight;
    if (answering === stop) answering = null;
    busy(answering !== null);
  }
}

function busy(is) {
  const had = document.activeElement === $("stop") || document.activeElement === $("send");
  $("send").hidden = is;
  $("stop").hidden = !is;
  if (had) (is ? $("stop") : $("message")).focus();
}

$("compose").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = $("message").value.trim();
  if (!text || answering) return;
  $("message").value = "";
  conversation.push({role: "user", content: text});
  bubble("user", text);
  answer();
});
$("message").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    $("compose").requestSubmit();
  }
});
$("stop").addEventListener("click", () => answering?.abort());
$("new-chat").addEventListener("click", () => {
  answering?.abort();
  conversation.length = 0;
  $("messages").replaceChildren();
  $("message").focus();
});
$("messages").dataset.empty = "What you send runs in the engine like any other request: it gets a seat, pages, and its part of each step.";

// --- The demo --------------------------------------------------------------------------------------------------------

// A browser opens six connections to a server at most: so the dozen goes in three, each a list of prompts.
const SHARED = "A page holds the keys and the values of sixteen tokens. A sequence takes as many pages as it has tokens for, "
  + "anywhere in memory, and its page table says where they are. Two sequences that begin with the same text hold the same "
  + "pages, and only read them. When a sequence ends it gives its pages back, but what is in them stays until they are needed. ";
const ENDINGS = ["What is a page?", "Who may write into a page that is shared?", "A hacker is", "Tell me a story of a small page that no one wanted to hold.",
  "Why", "What happens when there are no pages left, and one more token is to be written?", "The kernel reads the table and then", "Say it in one word:",
  "What is a prefix, and how is it found again when the same words come a second time in another question?", "The next token is"];
const ALONE = ["A GPU has many threads", "Once upon a time there was a kernel that waited for its data. It waited and waited, and the warps beside it went on."];
let demo = null;

async function drain(prompts, max_tokens, signal) {
  const response = await ask("v1/completions", {prompt: prompts, max_tokens, temperature: 0.9, stream: true,
    model: await modelName()}, signal);
  for await (const [, data] of events(response)) if (data !== "[DONE]" && JSON.parse(data).error) throw new Error(JSON.parse(data).error.message);
}

$("demo").addEventListener("click", async () => {
  if (demo) {
    demo.abort();
    return;
  }
  demo = new AbortController();
  const {signal} = demo;
  setText($("demo"), "Stop the demo");
  notice("");
  const prompts = [...ENDINGS.map((ending) => SHARED + ending), ...ALONE];
  const every = (first) => prompts.filter((_, at) => at % 3 === first);
  try {
    await Promise.all([drain(every(0), 24, signal), drain(every(1), 64, signal), drain(every(2), 120, signal)]);
  } catch (error) {
    if (error.name !== "AbortError") notice(error.message);
    demo.abort();
  }
  demo = null;
  setText($("demo"), "Run the demo");
});

// --- Begin -----------------------------------------------------------------------------------------------------------

drawAllAgain();
watch();
