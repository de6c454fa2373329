package wire_test

import (
	"fmt"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/dynamic-controller/engine/internal/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func Example() {
	message := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), "text")
	message = protowire.AppendVarint(protowire.AppendTag(message, 2, protowire.VarintType), 42)
	fields := wire.Read(message)
	for fields.Next() {
		fmt.Printf("%d: %q, %d bytes\n", fields.Number, fields.Value, len(fields.Raw))
	}
	fmt.Println(fields.Err())
	// Output:
	// 1: "text", 6 bytes
	// 2: "", 2 bytes
	// <nil>
}

func TestMessage_ReportsMalformedMessages(t *testing.T) {
	for message, want := range map[string]string{
		"\x0a":         "unexpected EOF",
		"\x0a\x02a":    "unexpected EOF",
		"\x08":         "unexpected EOF",
		"\x08\xff":     "unexpected EOF",
		"\x00":         "invalid field number",
		"\x0c":         "mismatching end group",
		"\x10\x01\xff": "unexpected EOF",
	} {
		fields := wire.Read([]byte(message))
		for fields.Next() {
		}
		if err := fields.Err(); err == nil || !strings.Contains(err.Error(), want) || fields.Next() {
			t.Errorf("%q: got %v, want an error that contains %q", message, err, want)
		}
	}
}
