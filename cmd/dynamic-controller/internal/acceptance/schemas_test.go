package acceptance

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/cel/openapi/resolver"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

var pod = schema.GroupVersionKind{Version: "v1", Kind: "Pod"}

// fakeResolver returns schemas of objects with one field.
type fakeResolver struct {
	field string
	err   error
	hold  chan struct{} // if set, requests wait until it is closed

	mu       sync.Mutex
	requests int
}

func (f *fakeResolver) ResolveSchema(schema.GroupVersionKind) (*spec.Schema, error) {
	f.mu.Lock()
	f.requests++
	field, err := f.field, f.err
	f.mu.Unlock()
	if f.hold != nil {
		<-f.hold
	}
	if err != nil {
		return nil, err
	}
	if field == "" {
		panic("a null schema")
	}
	return &spec.Schema{SchemaProps: spec.SchemaProps{
		Type: []string{"object"}, Properties: map[string]spec.Schema{field: *spec.StringProperty()},
	}}, nil
}

// expect compares the field in the schema, the error, and the number of requests since the last call. field is empty if
// no schema is expected.
func expect(t *testing.T, s *OpenAPISchemas, f *fakeResolver, field string, failure error,
	requests int) (version string) {
	t.Helper()
	f.requests = 0
	found, version, err := s.For(t.Context(), pod)
	got := ""
	if found != nil {
		got = strings.Join(slices.Collect(maps.Keys(found.Properties())), "")
	}
	if got != field || !errors.Is(err, failure) || f.requests != requests {
		t.Errorf("got field %q, error %v and %d requests; want %q, %v and %d", got, err, f.requests, field, failure, requests)
	}
	return version
}

func TestOpenAPISchemas_CachedUntilTheGroupChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeResolver{field: "a"}
		s := NewOpenAPISchemasFrom(f)
		first := expect(t, s, f, "a", nil, 1)
		f.field = "b"
		expect(t, s, f, "a", nil, 0)
		s.Changed("apps")
		expect(t, s, f, "a", nil, 0)
		s.Changed("")
		second := expect(t, s, f, "b", nil, 1)
		if first == second || second == "" {
			t.Errorf("got versions %q and %q", first, second)
		}
		s.Changed("")
		if again := expect(t, s, f, "b", nil, 1); again != second {
			t.Errorf("got version %[2]q for a schema equal to version %[1]q", second, again)
		}
		f.field = "c"
		time.Sleep(schemaMaxAge)
		expect(t, s, f, "c", nil, 1)
	})
}

func TestOpenAPISchemas_ReturnNilForKindsWithoutSchema(t *testing.T) {
	for reason, err := range map[string]error{
		"unknown kind":  resolver.ErrSchemaNotFound,
		"not published": apierrors.NewNotFound(schema.GroupResource{}, "openapi"),
		"not permitted": apierrors.NewForbidden(schema.GroupResource{}, "openapi", nil),
	} {
		t.Run(reason, func(t *testing.T) {
			f := &fakeResolver{err: err}
			s := NewOpenAPISchemasFrom(f)
			expect(t, s, f, "", nil, 1)
			expect(t, s, f, "", nil, 0)
		})
	}
}

func TestOpenAPISchemas_RetryAfterErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down := errors.New("connection refused")
		f := &fakeResolver{err: down}
		s := NewOpenAPISchemasFrom(f)
		expect(t, s, f, "", down, 1)
		f.err, f.field = nil, "a"
		time.Sleep(SchemaRetryPeriod - time.Nanosecond)
		expect(t, s, f, "", down, 0)
		time.Sleep(time.Nanosecond)
		expect(t, s, f, "a", nil, 1)

		// While a schema cannot be read, the old one is used unless the group has changed.
		f.err = down
		time.Sleep(schemaMaxAge)
		expect(t, s, f, "a", nil, 1)
		expect(t, s, f, "a", nil, 0)
		s.Changed("")
		expect(t, s, f, "", down, 1)
		f.err, f.field = nil, ""
		time.Sleep(SchemaRetryPeriod)
		if _, _, err := s.For(t.Context(), pod); err == nil || !strings.Contains(err.Error(), "invalid document") {
			t.Errorf("got error %v for a panic in the resolver", err)
		}
	})
}

func TestOpenAPISchemas_ShareRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeResolver{field: "a", hold: make(chan struct{})}
		s := NewOpenAPISchemasFrom(f)
		ctx, cancel := context.WithCancelCause(t.Context())
		stopped := errors.New("stopped")
		go func() {
			synctest.Wait()
			cancel(stopped)
		}()
		if _, _, err := s.For(ctx, pod); !errors.Is(err, stopped) {
			t.Errorf("got error %v for a cancelled caller", err)
		}
		var calls sync.WaitGroup
		for range 10 {
			calls.Go(func() {
				if found, _, err := s.For(t.Context(), pod); err != nil || found == nil {
					t.Errorf("got %v, %v", found, err)
				}
			})
		}
		synctest.Wait()
		s.Changed("")
		calls.Go(func() {
			if _, _, err := s.For(t.Context(), pod); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		close(f.hold)
		calls.Wait()
		if f.requests != 2 {
			t.Errorf("got %d requests, want one before and one after the change", f.requests)
		}
	})
}
