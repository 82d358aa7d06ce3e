// mqtt.js as a process: subscribes with a session that stays, and prints each payload on a line.
// node subscriber.js VERSION CLIENT_ID TOPIC HOST:PORT...
'use strict'
const mqtt = require('mqtt')

const [version, clientId, topic, ...addresses] = process.argv.slice(2)
const servers = addresses.map((address) => {
  const [host, port] = address.split(':')
  return { host, port: Number(port) }
})
// Everything else is as the library has it.
const client = mqtt.connect({
  ...(servers.length > 1 ? { servers, protocol: 'mqtt' } : { ...servers[0], protocol: 'mqtt' }),
  clientId,
  protocolVersion: Number(version),
  clean: false,
  ...(version === '5' ? { properties: { sessionExpiryInterval: 300 } } : {}),
})
client.on('connect', () => client.subscribe(topic, { qos: 1 }))
client.on('message', (_topic, payload) => console.log(payload.toString()))
client.on('error', (error) => console.error(`error ${error.code} ${error.message}`))
