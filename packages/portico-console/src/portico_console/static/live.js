// Live updates arrive on one long-running call. Views subscribe to topics for as long as they are open.

import { call } from "./mcp.js";

const listeners = new Map();
let running;
let wanted = "";
let timer;
let pause = 500;
let heard = () => {};

/** on("metrics", listener) → a function to unsubscribe */
export function on(topic, listener) {
  if (!listeners.has(topic)) listeners.set(topic, new Set());
  listeners.get(topic).add(listener);
  settle();
  return () => {
    listeners.get(topic)?.delete(listener);
    if (!listeners.get(topic)?.size) listeners.delete(topic);
    settle();
  };
}

/** heard(true) when connected, heard(false, why) otherwise. */
export function onState(listener) {
  heard = listener;
}

export function stop() {
  listeners.clear();
  settle();
}

function settle() {
  clearTimeout(timer);
  timer = setTimeout(() => {
    const topics = [...listeners.keys()].sort();
    if (topics.join() === wanted && running) return;
    wanted = topics.join();
    running?.abort();
    running = undefined;
    if (topics.length) watch(topics);
  }, 30);
}

async function watch(topics) {
  const mine = new AbortController();
  running = mine;
  while (!mine.signal.aborted) {
    try {
      await call("watch", { topics }, {
        signal: mine.signal,
        notice(method, params) {
          pause = 500;
          heard(true);
          if (method !== "notifications/message" || mine.signal.aborted) return;
          for (const listener of listeners.get(params.logger) ?? []) listener(params.data);
        },
      });
    } catch (why) {
      if (mine.signal.aborted) return;
      heard(false, why);
      if (why.status === 401) return;
      await new Promise((resolve) => setTimeout(resolve, pause));
      pause = Math.min(pause * 2, 10000);
    }
  }
}
