// Latencies in buckets whose bounds grow logarithmically, and their quantiles.

const BOUNDS = [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000]; // milliseconds, upper

// [{from, to, n}], without the empty ones at both ends; the last `to` is Infinity.
export function buckets(values) {
  const found = [...BOUNDS, Infinity].map((to, i) => ({ from: i === 0 ? 0 : BOUNDS[i - 1], to, n: 0 }));
  for (const value of values) found.find((one) => value <= one.to).n += 1;
  const first = found.findIndex((one) => one.n > 0);
  if (first < 0) return [];
  return found.slice(Math.max(0, first - 1), found.findLastIndex((one) => one.n > 0) + 2);
}

// Nearest rank; null without values.
export function quantile(values, q) {
  if (values.length === 0) return null;
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.max(0, Math.ceil(q * sorted.length) - 1)];
}
