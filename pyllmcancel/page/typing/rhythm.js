// The delays with which a person types. A script of typing is {before, keys: [{text, caret, delay}, …]}.

const KEY = 95, WORD = 70, SYMBOL = 60, SPREAD = 60, THOUGHT = 260, SEED = 20011; // milliseconds, but for the seed

// Return a script that types a text at the end of `before`, with the same delays each time, so that two runs are typed
// alike. At a slower `pace` there are fewer keys, so that it takes as long.
export function scriptOf(before, typed, pace = 1) {
  let state = SEED, text = before, previous = "";
  const chance = () => { state = (state * 1103515245 + 12345) % 2147483648; return state / 2147483648; };
  const keys = [...typed].slice(0, Math.ceil(typed.length / pace)).map((key) => {
    const wordBegins = /\s/.test(previous) && !/\s/.test(key);
    const delay = KEY + SPREAD * (chance() - .5) + (wordBegins ? WORD : 0) + (/[^\w\s]/.test(key) ? SYMBOL : 0)
      + (wordBegins && chance() > .8 ? THOUGHT : 0);
    previous = key;
    text += key;
    return { text, caret: text.length, delay: Math.round(pace * delay) };
  });
  return { before, keys };
}

const MAX_KEYS = 200, LONGEST_DELAY = 800;

// Return a script of a person's own keys: the last ones, with long pauses shortened.
export class Recording {
  #keys = [];
  #lastAt = null;

  key(before, text, caret, at) {
    const delay = this.#lastAt === null ? 0 : Math.min(LONGEST_DELAY, Math.round(at - this.#lastAt));
    this.#lastAt = at;
    this.#keys.push({ before, text, caret, delay });
    if (this.#keys.length > MAX_KEYS) this.#keys.shift();
  }

  clear() {
    this.#keys = [];
    this.#lastAt = null;
  }

  get length() { return this.#keys.length; }

  get script() {
    const keys = this.#keys.map(({ text, caret, delay }) => ({ text, caret, delay }));
    return { before: this.#keys[0].before, keys };
  }
}
