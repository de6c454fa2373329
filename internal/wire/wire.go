// Package wire iterates over the fields of protobuf messages without decoding them.
package wire

import "google.golang.org/protobuf/encoding/protowire"

// Message iterates over the fields of an encoded message. It neither copies nor changes the message.
type Message struct {
	// Number is the number of the current field.
	Number protowire.Number
	// Raw is the current field, including its number and type.
	Raw []byte
	// Value is the value of the current field if it is length-delimited, and nil otherwise.
	Value []byte

	rest []byte
	err  error
}

// Read returns an iterator over the fields of a message.
func Read(message []byte) Message { return Message{rest: message} }

// Next moves to the next field. It returns false after the last field, or if the message is malformed.
func (m *Message) Next() bool {
	if len(m.rest) == 0 || m.err != nil {
		return false
	}
	number, wireType, tag := protowire.ConsumeTag(m.rest)
	n := tag
	if tag > 0 {
		n = protowire.ConsumeFieldValue(number, wireType, m.rest[tag:])
	}
	if n < 0 {
		m.err = protowire.ParseError(n)
		return false
	}
	m.Number, m.Raw, m.Value = number, m.rest[:tag+n], nil
	if wireType == protowire.BytesType {
		m.Value, _ = protowire.ConsumeBytes(m.Raw[tag:])
	}
	m.rest = m.rest[len(m.Raw):]
	return true
}

// Err returns an error if the message is malformed.
func (m *Message) Err() error { return m.err }
