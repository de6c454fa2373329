package status

import "time"

// APIVersion and Kind identify the format of the document. Fields can be added without changing them.
const (
	APIVersion = "status.platform.example.com/v1alpha1"
	Kind       = "ReplicaStatus"
)

// Limits on the document.
const (
	MaxParked         = 500  // objects in Parked.Objects
	MaxFailingWatches = 10   // watches in Type.FailingWatches
	MaxResources      = 100  // resources in Blueprint.Resources; the limit for a Blueprint
	MaxOlderRevisions = 20   // revisions in Blueprint.OlderRevisions
	MaxMapperErrors   = 100  // errors in Mapper.Errors
	MaxMessageBytes   = 1024 // bytes in each error and message
)

// Replica is the status of one replica.
type Replica struct {
	APIVersion string      `json:"apiVersion"`
	Kind       string      `json:"kind"`
	Time       time.Time   `json:"time"`    // when the document was built
	Version    string      `json:"version"` // of the program
	Started    time.Time   `json:"started"` // when the process started
	Leadership Leadership  `json:"leadership"`
	Caches     Caches      `json:"caches"`
	Summary    Summary     `json:"summary"`
	Types      []Type      `json:"types"` // sorted by name
	Parked     Parked      `json:"parked"`
	Blueprints []Blueprint `json:"blueprints"` // sorted by name
	Mapper     Mapper      `json:"mapper"`
}

// Leadership describes which replica leads.
type Leadership struct {
	Identity string `json:"identity"` // of this replica
	Leading  bool   `json:"leading"`  // whether this replica can write
	Term     int64  `json:"term"`     // current or last term of this replica; 0 before the first one
	Leader   string `json:"leader,omitempty"`
}

// Caches describes whether the types that existed at startup have been listed.
type Caches struct {
	Synced  bool   `json:"synced"`
	Message string `json:"message,omitempty"` // why they have not been listed
}

// Summary contains sums over all types and Blueprints.
type Summary struct {
	Types      map[string]int    `json:"types"`      // by state
	Blueprints map[string]int    `json:"blueprints"` // by state
	Objects    int               `json:"objects"`
	Bytes      int64             `json:"bytes"`
	Failing    int               `json:"failing"`
	Parked     int               `json:"parked"`
	Queue      Queue             `json:"queue"`
	Reconciles map[string]uint64 `json:"reconciles"` // by outcome
}

// Queue counts the objects of a type that are waiting or being reconciled.
type Queue struct {
	Live          int     `json:"live"`          // waiting because of events and retries that are due
	Background    int     `json:"background"`    // waiting because of lists and resyncs
	Delayed       int     `json:"delayed"`       // waiting for a retry
	Running       int     `json:"running"`       // being reconciled
	OldestSeconds float64 `json:"oldestSeconds"` // how long the object at the head has waited
}

// Resource identifies a type.
type Resource struct {
	Group    string `json:"group"`
	Version  string `json:"version"`
	Resource string `json:"resource"`
}

// Type is the status of a served type.
type Type struct {
	Resource
	Kind      string    `json:"kind,omitempty"`
	Blueprint string    `json:"blueprint,omitempty"` // the Blueprint that serves the type
	State     string    `json:"state"`               // see dynamiccontroller.TypeState
	Message   string    `json:"message,omitempty"`   // why the type cannot be watched
	Since     time.Time `json:"since"`               // when State last changed
	Synced    bool      `json:"synced"`              // whether the cache holds a complete list
	Replacing string    `json:"replacing,omitempty"` // state of the watch that will replace the current one
	Objects   int       `json:"objects"`
	Bytes     int64     `json:"bytes"` // approximate memory used by the objects
	Failing   int       `json:"failing"`
	Parked    int       `json:"parked"`
	Queue     Queue     `json:"queue"`

	// Reconciles counts this replica's reconciles by outcome: see dynamiccontroller.Outcome. The counts restart when
	// the type is no longer served. Seconds is the total duration of these reconciles.
	Reconciles map[string]uint64 `json:"reconciles"`
	Seconds    float64           `json:"secondsTotal"`

	Watches        int     `json:"watches"` // number of watches for children and other related objects
	FailingWatches []Watch `json:"failingWatches,omitempty"`
}

// Watch is a watch that fails.
type Watch struct {
	Resource string    `json:"resource"` // for example deployments.v1.apps
	State    string    `json:"state"`
	Message  string    `json:"message,omitempty"`
	Since    time.Time `json:"since"`
}

// Parked describes the objects that are not reconciled until they change.
type Parked struct {
	Total   int            `json:"total"`
	Objects []ParkedObject `json:"objects"` // newest first; at most ten of each type
}

// ParkedObject is an object that is not reconciled until it changes.
type ParkedObject struct {
	Resource
	Namespace string    `json:"namespace,omitempty"`
	Name      string    `json:"name"`
	Failures  int       `json:"failures"` // consecutive failures
	Error     string    `json:"error"`
	Since     time.Time `json:"since"`
}

// Blueprint is the status of a Blueprint on this replica.
type Blueprint struct {
	Name       string         `json:"name"`
	Type       *BlueprintType `json:"type,omitempty"` // nil while it is unknown
	State      string         `json:"state"`          // Served, Waiting, Unknown, Rejected or Deleting
	Reason     string         `json:"reason,omitempty"`
	Message    string         `json:"message,omitempty"`
	Generation int64          `json:"generation"`
	// ServedGeneration is 0, and Revision is empty, if instances are not reconciled.
	ServedGeneration int64               `json:"servedGeneration,omitempty"`
	Revision         string              `json:"revision,omitempty"`
	OlderRevisions   []string            `json:"olderRevisions,omitempty"` // that instances still use
	Rollout          *Rollout            `json:"rollout,omitempty"`        // nil if it is unknown
	Resources        []BlueprintResource `json:"resources"`                // each one follows those that it needs
}

// BlueprintType is the type that a Blueprint defines.
type BlueprintType struct {
	Resource
	Kind string `json:"kind,omitempty"`
}

// Rollout is the progress of a rollout.
type Rollout struct {
	Updated int  `json:"updated"`
	Total   int  `json:"total"`
	Stopped bool `json:"stopped"` // failing instances prevent further instances from moving
	Stalled bool `json:"stalled"` // instances have not become ready for ten minutes
}

// BlueprintResource is a resource of a Blueprint.
type BlueprintResource struct {
	ID         string   `json:"id"`
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Needs      []string `json:"needs,omitempty"`      // the ids of the resources that it refers to
	External   bool     `json:"external,omitempty"`   // it refers to existing objects
	Collection bool     `json:"collection,omitempty"` // it stands for several objects
}

// Mapper is the status of the REST mapper.
type Mapper struct {
	Synced bool          `json:"synced"`
	Kinds  int64         `json:"kinds"`
	Errors []MapperError `json:"errors"`
}

// MapperError is an error that can cause the mapped kinds to be outdated.
type MapperError struct {
	Source       string    `json:"source"`
	GroupVersion string    `json:"groupVersion,omitempty"`
	Error        string    `json:"error"`
	Since        time.Time `json:"since"`
}
