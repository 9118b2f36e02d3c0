// The anthropic package: messages with a tool, and a stream that is aborted.
import assert from 'node:assert'
import { client } from './recipe.mjs'

const [callPrompt, longPrompt] = process.argv.slice(2)
const model = 'stdlib-coder'
const schema = { type: 'object', properties: { text: { type: 'string' } }, required: ['text'] }
const tools = [{ name: 'say', description: 'Says a text.', input_schema: schema }]

const messages = [{ role: 'user', content: callPrompt }]
const first = await client.messages.create({ model, max_tokens: 4096, messages, tools })
const call = first.content.find((block) => block.type === 'tool_use')
const result = { type: 'tool_result', tool_use_id: call.id, content: call.input.text }
messages.push({ role: 'assistant', content: first.content }, { role: 'user', content: [result] })
const answer = await client.messages.create({ model, max_tokens: 4096, messages, tools })
assert.equal(answer.stop_reason, 'end_turn')

const stream = client.messages.stream({ model, max_tokens: 30000, messages: [{ role: 'user', content: longPrompt }] })
let n = 0
for await (const event of stream) if (event.type === 'content_block_delta' && ++n === 5) break
assert.equal(n, 5)
console.log(`left ${Date.now() / 1000}`)
stream.abort()
