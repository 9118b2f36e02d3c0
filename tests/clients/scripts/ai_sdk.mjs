// The AI SDK: a tool that it runs itself, and a stream that is aborted.
import assert from 'node:assert'
import { stepCountIs, streamText, tool } from 'ai'
import { z } from 'zod'
import { model } from './recipe.mjs'

const [callPrompt, longPrompt] = process.argv.slice(2)
const onError = ({ error }) => { throw error }
const say = tool({
  description: 'Says a text.',
  inputSchema: z.object({ text: z.string() }),
  execute: async ({ text }) => text,
})

const turn = streamText({ model, prompt: callPrompt, tools: { say }, stopWhen: stepCountIs(3), onError })
await turn.consumeStream()
const steps = await turn.steps
assert.deepEqual(steps.map((step) => step.finishReason), ['tool-calls', 'stop'])

const leaving = new AbortController()
const { fullStream } = streamText({ model, prompt: longPrompt, abortSignal: leaving.signal, onError })
let n = 0
for await (const part of fullStream) {
  if (part.type !== 'text-delta' || ++n !== 5) continue
  console.log(`left ${Date.now() / 1000}`)
  leaving.abort()
}
assert.ok(n >= 5)
