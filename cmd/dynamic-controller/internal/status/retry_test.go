package status

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/go-logr/logr/funcr"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/dynamiccontroller/replica"
)

func id(gvr schema.GroupVersionResource, key string) dynamiccontroller.ObjectIdentifiers {
	return dynamiccontroller.ObjectIdentifiers{GVR: gvr, NamespacedKey: key}
}

func everyType(schema.GroupVersionResource) bool { return true }

func TestRetrier_EnqueuesTheSelectedObjectsOnTheLeader(t *testing.T) {
	others := schema.GroupVersionResource{Group: "other.example.com", Version: "v2", Resource: "websites"}
	pods := schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	const all = "[other.example.com/v2/websites/flowers shop.example.com/v1/websites/shop/books " +
		"shop.example.com/v1/websites/shop/flowers v1/pods/shop/web]"
	leading := replica.Status{Leading: true, Identity: "a", Leader: "a"}
	for _, test := range []struct {
		name, method, body string
		leadership         replica.Status
		code               int
		want, response     string
	}{
		{"everything", "POST", "", leading, 200, all, `{"retried":4}`},
		{"an empty request", "POST", "{}", leading, 200, all, `{"retried":4}`},
		{"a resource", "POST", `{"type":"Pods"}`, leading, 200, "[v1/pods/shop/web]", `{"retried":1}`},
		{"a full name", "POST", `{"type":"websites.v2.other.example.com"}`, leading, 200,
			"[other.example.com/v2/websites/flowers]", `{"retried":1}`},
		{"an object", "POST", `{"type":"websites.shop.example.com","namespace":"shop","name":"flowers"}`, leading, 200,
			"[shop.example.com/v1/websites/shop/flowers]", `{"retried":1}`},
		{"a cluster-scoped object", "POST", `{"type":"websites.other.example.com","namespace":"shop","name":"flowers"}`,
			leading, 200, "[other.example.com/v2/websites/flowers]", `{"retried":1}`},
		{"an object in another namespace", "POST", `{"type":"pods","namespace":"default","name":"web"}`, leading, 200,
			"[]", `{"retried":0}`},
		{"an unknown type", "POST", `{"type":"unknown"}`, leading, 200, "[]", `{"retried":0}`},
		{"an unknown field", "POST", `{"typ":"pods"}`, leading, 400, "[]", "must be a JSON object"},
		{"two values", "POST", `{} {}`, leading, 400, "[]", "must be a JSON object"},
		{"a name without a type", "POST", `{"name":"web"}`, leading, 400, "[]", "requires a type"},
		{"a namespace without a name", "POST", `{"type":"pods","namespace":"shop"}`, leading, 400, "[]", "requires a name"},
		{"too much", "POST", strings.Repeat(" ", 1<<20), leading, 400, "[]", "too long"},
		{"another method", "GET", "", leading, 405, "[]", "must be POST"},
		{"a standby", "POST", "", replica.Status{Identity: "a", Leader: "b"}, 409, "[]", `the leader is "b"`},
		{"a form of another site", "FORM", "{}", leading, 415, "[]", "must be application/json"},
		{"no leader", "POST", "", replica.Status{Identity: "a"}, 409, "[]", "no replica leads"},
	} {
		t.Run(test.name, func(t *testing.T) {
			logged, enqueued := "", []string{}
			h := &Retrier{
				Log:        funcr.New(func(_, line string) { logged += line }, funcr.Options{}),
				Leadership: func() replica.Status { return test.leadership },
				Parked:     &ParkedKeys{},
				Enqueue: func(ids ...dynamiccontroller.ObjectIdentifiers) {
					for _, id := range ids {
						enqueued = append(enqueued, strings.TrimPrefix(fmt.Sprintf("%s/%s/%s/%s", id.GVR.Group,
							id.GVR.Version, id.GVR.Resource, id.NamespacedKey), "/"))
					}
				},
			}
			for _, id := range []dynamiccontroller.ObjectIdentifiers{
				id(websites, "shop/flowers"), id(websites, "shop/books"), id(others, "flowers"), id(pods, "shop/web"),
			} {
				h.Parked.Add(id)
			}
			method, contentType := test.method, "application/json; charset=utf-8"
			if method == "FORM" {
				method, contentType = http.MethodPost, "text/plain"
			}
			w, r := httptest.NewRecorder(), httptest.NewRequest(method, RetryPath, strings.NewReader(test.body))
			r.Header.Set("Content-Type", contentType)
			h.ServeHTTP(w, r.WithContext(request.WithUser(r.Context(), &user.DefaultInfo{Name: "operator"})))
			slices.Sort(enqueued)
			if w.Code != test.code || fmt.Sprint(enqueued) != test.want || !strings.Contains(w.Body.String(), test.response) {
				t.Errorf("got %d, %s, enqueued %s", w.Code, w.Body, enqueued)
			}
			if is := strings.Contains(logged, `"user"="operator"`); is != (test.code == http.StatusOK) {
				t.Errorf("logged %s", logged)
			}
		})
	}
}

func TestParkedKeys_ContainObjectsUntilTheirReconcileStarts(t *testing.T) {
	p := &ParkedKeys{}
	count := func() int { return len(p.All(everyType)) }
	p.Add(id(websites, "a"))
	p.Add(id(websites, "a"))
	p.Add(id(websites, "b"))
	if count() != 2 || p.total.Load() != 2 {
		t.Fatalf("got %d, total %d", count(), p.total.Load())
	}
	handler := p.Handler(func(_ context.Context, reconciled dynamiccontroller.ObjectIdentifiers) error {
		if slices.Contains(p.All(everyType), reconciled) {
			t.Errorf("%s is still parked", reconciled)
		}
		p.Add(reconciled) // it fails again
		return nil
	})
	_ = handler(t.Context(), id(websites, "a"))
	if count() != 2 || p.total.Load() != 2 {
		t.Errorf("got %d, total %d", count(), p.total.Load())
	}
	p.remove(id(websites, "a"))
	p.remove(id(websites, "a"))
	if count() != 1 || p.total.Load() != 1 {
		t.Errorf("got %d, total %d", count(), p.total.Load())
	}
	p.Metrics(dynamiccontroller.NoMetrics{}).Forget(websites)
	if count() != 0 || p.total.Load() != 0 || len(p.byType) != 0 {
		t.Errorf("got %d, total %d", count(), p.total.Load())
	}
}

func TestParkedKeys_ConcurrentUse(t *testing.T) {
	p := &ParkedKeys{}
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for j := range 1000 {
				key := id(websites, fmt.Sprint(i, "/", j%10))
				p.Add(key)
				p.All(everyType)
				p.remove(key)
			}
		})
	}
	all.Wait()
	if n := p.total.Load(); n != 0 || len(p.All(everyType)) != 0 {
		t.Errorf("got %d keys", n)
	}
}
