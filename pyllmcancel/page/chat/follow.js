// The thread stays at its end while it grows, until the person scrolls up.
import { useEffect, useRef, useState } from "../lib/html.js";
import { listen } from "../lib/observable.js";

const NEAR = 48; // distance from the end, in pixels, that still counts as the end

// {scroller, content: refs, isAway, toEnd()}. A thread with another `key` starts at its end.
export function useFollow(key) {
  const scroller = useRef(null), content = useRef(null), state = useRef(null);
  const [isAway, setAway] = useState(false);
  state.current ??= { isFollowing: true, top: 0 };
  const toEnd = () => {
    state.current.isFollowing = true;
    setAway(false);
    const box = scroller.current;
    box.scrollTop = box.scrollHeight;
    state.current.top = box.scrollTop;
  };
  useEffect(() => {
    const box = scroller.current, at = state.current;
    const scrolled = () => {
      const isNear = box.scrollHeight - box.scrollTop - box.clientHeight < NEAR;
      // Growth never scrolls up: only a person does.
      if (isNear) at.isFollowing = true;
      else if (box.scrollTop < at.top - 1) at.isFollowing = false;
      at.top = box.scrollTop;
      setAway(!isNear && !at.isFollowing);
    };
    const grown = () => {
      if (at.isFollowing) toEnd();
      else scrolled();
    };
    const observer = new ResizeObserver(grown);
    observer.observe(content.current);
    observer.observe(box);
    const forget = listen(box, "scroll", scrolled);
    return () => { observer.disconnect(); forget(); };
  }, []);
  useEffect(() => { toEnd(); }, [key]);
  return { scroller, content, isAway, toEnd };
}
