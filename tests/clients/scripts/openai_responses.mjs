// The openai package: responses with a tool, and a stream that is aborted.
import assert from 'node:assert'
import { client } from './recipe.mjs'

const [callPrompt, longPrompt] = process.argv.slice(2)
const model = 'stdlib-coder'
const parameters = { type: 'object', properties: { text: { type: 'string' } }, required: ['text'] }
const tools = [{ type: 'function', name: 'say', description: 'Says a text.', parameters, strict: false }]

const input = [{ role: 'user', content: callPrompt }]
const { output: [call] } = await client.responses.create({ model, input, tools })
input.push(call, { type: 'function_call_output', call_id: call.call_id, output: JSON.parse(call.arguments).text })
const answer = await client.responses.create({ model, input, tools })
assert.equal(answer.status, 'completed')

const stream = await client.responses.create({ model, input: longPrompt, stream: true })
let n = 0
for await (const event of stream) if (event.type === 'response.output_text.delta' && ++n === 5) break
assert.equal(n, 5)
console.log(`left ${Date.now() / 1000}`)
stream.controller.abort()
