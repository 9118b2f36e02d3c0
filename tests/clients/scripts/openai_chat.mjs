// The openai package: a chat with a tool, and a stream that is aborted.
import assert from 'node:assert'
import { client } from './recipe.mjs'

const [callPrompt, longPrompt] = process.argv.slice(2)
const model = 'stdlib-coder'
const parameters = { type: 'object', properties: { text: { type: 'string' } }, required: ['text'] }
const tools = [{ type: 'function', function: { name: 'say', description: 'Says a text.', parameters } }]

const messages = [{ role: 'user', content: callPrompt }]
const first = await client.chat.completions.create({ model, messages, tools })
const [call] = first.choices[0].message.tool_calls
const { text } = JSON.parse(call.function.arguments)
messages.push(first.choices[0].message, { role: 'tool', tool_call_id: call.id, content: text })
const answer = await client.chat.completions.create({ model, messages, tools })
assert.equal(answer.choices[0].finish_reason, 'stop')

const question = { role: 'user', content: longPrompt }
const stream = await client.chat.completions.create({ model, messages: [question], stream: true })
let n = 0
for await (const _ of stream) if (++n === 5) break
console.log(`left ${Date.now() / 1000}`)
stream.controller.abort()
