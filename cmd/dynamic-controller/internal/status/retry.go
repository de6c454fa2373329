package status

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"strings"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/dynamiccontroller/replica"
)

// RetryPath is the path of the handler that reconciles parked objects again. It accepts POST requests.
const RetryPath = "/status/retry"

// jsonType is the media type of requests and responses.
const jsonType = "application/json"

// RetryRequest is the body of a request to reconcile parked objects again. Without fields, it selects all of them.
type RetryRequest struct {
	// Type selects the objects of a type, as RESOURCE, RESOURCE.GROUP or RESOURCE.VERSION.GROUP.
	Type string `json:"type,omitempty"`
	// Namespace and Name select one object of the type. The namespace of a cluster-scoped object is ignored.
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
}

// RetryResponse is the response to a RetryRequest.
type RetryResponse struct {
	Retried int `json:"retried"` // number of parked objects that have been added to the queue
}

// Retrier reconciles parked objects again. All fields are required.
type Retrier struct {
	Log        logr.Logger
	Leadership func() replica.Status
	Parked     *ParkedKeys
	Enqueue    func(ids ...dynamiccontroller.ObjectIdentifiers)
}

// ServeHTTP implements [http.Handler]. Only the leader accepts requests, because only the leader reconciles.
func (h *Retrier) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		http.Error(w, "the method must be POST", http.StatusMethodNotAllowed)
		return
	}
	// A page on another site can make a browser send a POST request, but not with this content type. Without this check,
	// such a request would be accepted if a proxy in front of the replica added the user's credentials.
	if mediaType, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || mediaType != jsonType {
		http.Error(w, "the Content-Type must be "+jsonType, http.StatusUnsupportedMediaType)
		return
	}
	wanted, err := readRetry(w, r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if s := h.Leadership(); !s.Leading {
		leader := "no replica leads"
		if s.Leader != "" && s.Leader != s.Identity {
			leader = fmt.Sprintf("the leader is %q", s.Leader)
		}
		http.Error(w, "this replica is not the leader: "+leader, http.StatusConflict)
		return
	}
	ids := wanted.filter(h.Parked.All(wanted.matches))
	h.Enqueue(ids...)
	name := ""
	if user, ok := request.UserFrom(r.Context()); ok {
		name = user.GetName()
	}
	h.Log.Info("Parked objects retried", "objects", len(ids), "type", wanted.Type, "namespace", wanted.Namespace,
		"name", wanted.Name, "user", name)
	w.Header().Set("Content-Type", jsonType)
	_ = json.NewEncoder(w).Encode(RetryResponse{Retried: len(ids)})
}

func readRetry(w http.ResponseWriter, r *http.Request) (wanted RetryRequest, err error) {
	const maxBody = 4 << 10
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		return wanted, errors.New("the body cannot be read, or is too long")
	}
	if len(data) == 0 {
		return wanted, nil
	}
	decoder := json.NewDecoder(strings.NewReader(string(data)))
	decoder.DisallowUnknownFields() // an unknown selector must not select all objects
	if decoder.Decode(&wanted) != nil || decoder.More() {
		return wanted, errors.New(`the body must be a JSON object with the optional fields "type", "namespace" and "name"`)
	}
	if wanted.Name == "" && wanted.Namespace != "" || wanted.Type == "" && wanted.Name != "" {
		return wanted, errors.New("a namespace requires a name, and a name requires a type")
	}
	return wanted, nil
}

// matches reports whether the request selects objects of a type.
func (r RetryRequest) matches(gvr schema.GroupVersionResource) bool {
	return r.Type == "" || MatchesType(r.Type, Resource{gvr.Group, gvr.Version, gvr.Resource})
}

// MatchesType reports whether name is RESOURCE, RESOURCE.GROUP or RESOURCE.VERSION.GROUP of a type.
func MatchesType(name string, of Resource) bool {
	name = strings.ToLower(name)
	gr := schema.GroupResource{Group: of.Group, Resource: of.Resource}
	return name == of.Resource || name == gr.String() || name == of.String()
}

// filter returns the selected objects. It modifies its argument.
func (r RetryRequest) filter(all []dynamiccontroller.ObjectIdentifiers) []dynamiccontroller.ObjectIdentifiers {
	if r.Name == "" {
		return all
	}
	return slices.DeleteFunc(all, func(id dynamiccontroller.ObjectIdentifiers) bool {
		return id.Name() != r.Name || id.Namespace() != "" && id.Namespace() != r.Namespace
	})
}
