package objects

import (
	"bytes"
	"compress/flate"
	gojson "encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"
)

var sizes = []struct {
	name  string
	bytes int
}{{"1kB", 1000}, {"2.4kB", 2400}, {"10kB", 10000}}

// randomObjects returns objects of one type, without managedFields. The objects have the same field names but different
// values, because nearly identical objects would make compression look better than it is.
func randomObjects(n, size int) [][]byte {
	random := rand.New(rand.NewPCG(1, uint64(size)))
	out := make([][]byte, n)
	for i := range out {
		out[i] = randomObject(random, size)
	}
	return out
}

func randomObject(random *rand.Rand, size int) []byte {
	word := func(n int) string {
		letters := make([]byte, n)
		for i := range letters {
			letters[i] = "abcdefghijklmnopqrstuvwxyz0123456789"[random.IntN(36)]
		}
		return string(letters)
	}
	uid := func() string {
		return fmt.Sprintf("%08x-%04x-%04x-%04x-%012x",
			random.Uint32(), random.IntN(1<<16), random.IntN(1<<16), random.IntN(1<<16), random.Int64N(1<<48))
	}
	minute := func() string {
		return fmt.Sprintf("2026-%02d-%02dT%02d:%02d:%02dZ",
			1+random.IntN(12), 1+random.IntN(28), random.IntN(24), random.IntN(60), random.IntN(60))
	}
	var b bytes.Buffer
	name, namespace := word(14), word(10)
	fmt.Fprintf(&b, `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"creationTimestamp":%q,"generation":%d,`+
		`"labels":{"app.kubernetes.io/name":%q},"name":%q,"namespace":%q,"resourceVersion":"%d","uid":%q},`,
		minute(), random.IntN(50), word(8), name, namespace, random.IntN(1e9), uid())
	fmt.Fprintf(&b, `"status":{"conditions":[{"lastTransitionTime":%q,"message":"ready with %s","observedGeneration":%d,`+
		`"reason":"Ready","status":"True","type":"Ready"}],"replicas":%d},"spec":{"owner":%q,"components":[`,
		minute(), word(12), random.IntN(50), random.IntN(10), word(9)+"@example.com")
	for separator := ""; b.Len() < size-200; separator = "," {
		fmt.Fprintf(&b, `%s{"enabled":%t,"env":[{"name":%q,"value":%q}],`+
			`"image":"registry.example.com/%s/%s:%d.%d","name":%q,"replicas":%d,`+
			`"resources":{"limits":{"cpu":"%dm","memory":"%dMi"}},"weight":%.3f}`,
			separator, random.IntN(2) == 0, strings.ToUpper(word(7)), word(16),
			word(6), word(8), random.IntN(9), random.IntN(99), word(9), random.IntN(20),
			random.IntN(4000), random.IntN(8000), random.Float64())
	}
	b.WriteString(`]}}`)
	return b.Bytes()
}

// form is one of the storage forms to compare.
type form struct {
	name   string
	store  func(data []byte) []byte
	decode func(stored []byte) *unstructured.Unstructured
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func decodeJSON(data []byte) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	if err := json.Unmarshal(data, &u.Object); err != nil {
		panic(err)
	}
	return u
}

// forms returns the storage forms to compare. The dictionary for deflate is another object of the same type.
func forms(dictionary []byte) []form {
	var compressed bytes.Buffer
	writer := must(flate.NewWriterDict(&compressed, flate.DefaultCompression, dictionary))
	reader := flate.NewReaderDict(nil, dictionary)
	return []form{
		{"JSON",
			func(data []byte) []byte { return []byte(must(Parse(data, Full, metav1.TypeMeta{})).data) },
			func(stored []byte) *unstructured.Unstructured { return decodeJSON(bytes.Clone(stored)) }},
		{"CBOR",
			func(data []byte) []byte { return must(direct.Marshal(decodeJSON(data).Object)) },
			func(stored []byte) *unstructured.Unstructured {
				u := &unstructured.Unstructured{}
				if err := direct.Unmarshal(stored, &u.Object); err != nil {
					panic(err)
				}
				return u
			}},
		{"deflate",
			func(data []byte) []byte {
				compressed.Reset()
				writer.Reset(&compressed)
				must(io.WriteString(writer, must(Parse(data, Full, metav1.TypeMeta{})).data))
				if err := writer.Close(); err != nil {
					panic(err)
				}
				return bytes.Clone(compressed.Bytes())
			},
			func(stored []byte) *unstructured.Unstructured {
				if err := reader.(flate.Resetter).Reset(bytes.NewReader(stored), dictionary); err != nil {
					panic(err)
				}
				return decodeJSON(must(io.ReadAll(reader)))
			}},
	}
}

// BenchmarkForms compares the storage forms of an object; see docs/adr/0005.
func BenchmarkForms(b *testing.B) {
	for _, size := range sizes {
		data := randomObjects(101, size.bytes)
		dictionary, data := data[100], data[:100]
		for _, f := range forms(dictionary) {
			stored, total := make([][]byte, len(data)), 0
			for i, d := range data {
				stored[i] = f.store(d)
				total += allocated(len(stored[i]))
			}
			b.Run(size.name+"/"+f.name+"/store", func(b *testing.B) {
				for i := 0; b.Loop(); i++ {
					f.store(data[i%len(data)])
				}
				b.ReportMetric(float64(total)/float64(len(data)), "B/object")
			})
			b.Run(size.name+"/"+f.name+"/decode", func(b *testing.B) {
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					f.decode(stored[i%len(stored)])
				}
			})
		}
	}
}

// BenchmarkMetadata compares the encodings of metadata; see docs/adr/0005. The metadata is received with managedFields,
// which are not stored.
func BenchmarkMetadata(b *testing.B) {
	o := protobufWidget()
	o.Annotations = map[string]string{"example.com/owner": "team-a"}
	text, encoded := must(gojson.Marshal(o)), marshal(b, o)
	for encoding, store := range map[string]func() *Record{
		"JSON":     func() *Record { return must(Parse(text, Metadata, metav1.TypeMeta{})) },
		"protobuf": func() *Record { return must(ParseProtobuf(encoded, Metadata)) },
	} {
		r := store()
		b.Run(encoding+"/store", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				store()
			}
			b.ReportMetric(float64(r.Size()), "B/object")
		})
		b.Run(encoding+"/decode", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				must(r.Decode(Metadata))
			}
		})
	}
}

// BenchmarkDecodedCache compares decoding a record with reading from a cache of decoded objects, which requires a deep
// copy for each read.
func BenchmarkDecodedCache(b *testing.B) {
	for _, size := range sizes {
		data := randomObjects(100, size.bytes)
		records, objects := make([]*Record, len(data)), make([]*unstructured.Unstructured, len(data))
		before := heap()
		for i, d := range data {
			objects[i] = decodeJSON(d)
		}
		decodedBytes := float64(heap()-before) / float64(len(data))
		for i, d := range data {
			records[i] = parse(b, string(d), Full)
		}
		b.Run(size.name+"/decode", func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				must(records[i%len(records)].Decode(Full))
			}
		})
		b.Run(size.name+"/deepcopy", func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				objects[i%len(objects)].DeepCopy()
			}
			b.ReportMetric(decodedBytes, "B/object")
		})
	}
}

func heap() uint64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

func BenchmarkParse(b *testing.B) {
	for _, size := range sizes {
		data := randomObjects(1, size.bytes)[0]
		for name, projection := range map[string]Projection{"keys": Keys, "metadata": Metadata, "full": Full} {
			b.Run(size.name+"/"+name, func(b *testing.B) {
				b.SetBytes(int64(len(data)))
				b.ReportAllocs()
				for b.Loop() {
					must(Parse(data, projection, metav1.TypeMeta{}))
				}
			})
		}
	}
}

func BenchmarkRead(b *testing.B) {
	r := parse(b, string(randomObjects(1, 2400)[0]), Full)
	selector := must(labels.Parse("app.kubernetes.io/name=shop"))
	var into struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
		Spec              gojson.RawMessage `json:"spec"`
	}
	for name, read := range map[string]func(){
		"matches":    func() { r.Matches(selector) },
		"objectmeta": func() { r.ObjectMeta() },
		"owners":     func() { r.OwnerReferences() },
		"full":       func() { must(r.Decode(Full)) },
		"into":       func() { must(0, r.DecodeInto(&into, Complete)) },
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				read()
			}
		})
	}
}

// BenchmarkIndex measures the memory of an index, and what a change of one object costs together with the next call to
// Find.
func BenchmarkIndex(b *testing.B) {
	const size = 100_000
	for _, test := range []struct {
		name     string
		distinct int // number of values
	}{{"all values are different", size}, {"100 objects per value", size / 100}, {"10 values", 10}} {
		b.Run(test.name, func(b *testing.B) {
			records := make(map[string]*Record, size)
			for n := range size {
				r := owned(b, "namespace", fmt.Sprint("object-", n), "1", types.UID(fmt.Sprint("value-", n%test.distinct)))
				records[r.Key()] = r
			}
			s := NewStore(Metadata)
			s.Replace("", records)
			i := s.NewIndex(byOwners)
			before := heap()
			i.Find("value-1")
			grown := heap() - before
			changed := [2]*Record{
				owned(b, "namespace", "object-1", "2", "value-2"), owned(b, "namespace", "object-1", "3", "value-3"),
			}
			b.ReportAllocs()
			for n := 0; b.Loop(); n++ {
				s.Put(changed[n%2])
				i.Find("none")
			}
			b.ReportMetric(float64(grown)/size, "bytes/object")
			runtime.KeepAlive(i)
		})
	}
}

// typedWidget is the Go type of the objects that randomObjects returns.
type typedWidget struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Owner      string `json:"owner"`
		Components []struct {
			Name    string `json:"name"`
			Image   string `json:"image"`
			Enabled bool   `json:"enabled"`
			Env     []struct {
				Name  string `json:"name"`
				Value string `json:"value"`
			} `json:"env"`
			Replicas  int32 `json:"replicas"`
			Resources struct {
				Limits map[string]resource.Quantity `json:"limits"`
			} `json:"resources"`
			Weight float64 `json:"weight"`
		} `json:"components"`
	} `json:"spec"`
	Status struct {
		Replicas   int32              `json:"replicas"`
		Conditions []metav1.Condition `json:"conditions"`
	} `json:"status"`
}

// BenchmarkTyped compares ways to read a record as a Go type. The second one is what a program does with an
// Unstructured.
func BenchmarkTyped(b *testing.B) {
	for _, size := range sizes {
		record := parse(b, string(randomObjects(1, size.bytes)[0]), Full)
		for _, way := range []struct {
			name   string
			decode func(into *typedWidget) error
		}{
			{"DecodeInto", func(into *typedWidget) error { return record.DecodeInto(into, Full) }},
			{"FromUnstructured", func(into *typedWidget) error {
				object, err := record.Decode(Full)
				if err != nil {
					return err
				}
				content := object.(*unstructured.Unstructured).Object
				return apiruntime.DefaultUnstructuredConverter.FromUnstructured(content, into)
			}},
		} {
			b.Run(size.name+"/"+way.name, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if err := way.decode(&typedWidget{}); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
