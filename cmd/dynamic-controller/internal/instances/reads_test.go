package instances

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/identity"
)

// Users who can update children can make all of them large.
func TestChildren_LiveReadsShareOneBudget(t *testing.T) {
	const size = 1 << 20
	var requests atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		requests.Add(1)
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"apiVersion":"v1","kind":"ConfigMap","data":{"a":%q}}`, strings.Repeat("x", size))
	}))
	defer server.Close()
	server.Config.SetKeepAlivesEnabled(false)
	c := newIdentityTest(t, sharing())
	manager, err := identity.New(&rest.Config{Host: server.URL}, identity.Options{Namespace: "platform"})
	if err != nil {
		t.Fatal(err)
	}
	if c.identities.client, err = manager.Client(web); err != nil {
		t.Fatal(err)
	}
	access, err := c.accessFor(t.Context(), c.self)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 2 * blueprint.MaxChildBytes / size {
		_, err = access.reader.live.Get(t.Context(), configMaps, "shop", fmt.Sprint("page-", i))
	}
	if !errors.Is(err, identity.ErrResponseTooLarge) || !strings.Contains(err.Error(), "more than 16777216 bytes") {
		t.Errorf("got the error %v", err)
	}
	if n := requests.Load(); n > blueprint.MaxChildBytes/size {
		t.Errorf("%d requests were sent", n)
	}
	reference := blueprint.Reference{ID: "settings", GVK: c.References[0].GVK, Namespace: "shop", Name: "shared"}
	if _, err := access.lookups.lookUp(t.Context(), reference); err != nil {
		t.Errorf("references must have a separate budget, got %v", err)
	}
}
