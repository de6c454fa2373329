package restmapper

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/dynamic-controller/engine/internal/listwatch"
	"github.com/dynamic-controller/engine/internal/protect"
)

// progress describes which changes a watcher has passed to the mapper.
type progress struct {
	mu      sync.Mutex
	listed  bool              // a list has been passed to the mapper
	passing bool              // a list or an event is being passed to the mapper
	version string            // the resourceVersion of the newest list, event or bookmark, also of an earlier run
	objects map[string]string // the resourceVersions of all objects, by name
	changed chan struct{}     // closed by the next change; nil if nobody waits for it
}

func (p *progress) newest() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.version
}

// begin must be called before a list or an event is passed to the mapper. It must be followed by replace or set.
func (p *progress) begin() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.passing = true
}

// replace records a list that has been passed to the mapper.
func (p *progress) replace(version string, objects map[string]string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.objects, p.listed = objects, true
	p.setLocked(version)
}

// set records an event that has been passed to the mapper. The object's version is empty if the object was deleted.
func (p *progress) set(version, name, objectVersion string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case objectVersion == "":
		delete(p.objects, name)
	case p.objects == nil:
		p.objects = map[string]string{name: objectVersion}
	default:
		p.objects[name] = objectVersion
	}
	p.setLocked(version)
}

// bookmark records a bookmark.
func (p *progress) bookmark(version string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.setLocked(version)
}

func (p *progress) setLocked(version string) {
	p.version, p.passing = version, false
	if p.changed != nil {
		close(p.changed)
		p.changed = nil
	}
}

// reach waits until all changes that led to a list have been passed to the mapper. The parameters are the version of
// the list, and the versions of its objects by name.
func (p *progress) reach(ctx context.Context, version string, objects map[string]string) error {
	for {
		changed := p.changeAfter(version, objects)
		if changed == nil {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("the watch has not delivered the newest changes: %w", context.Cause(ctx))
		}
	}
}

// changeAfter returns a channel that is closed by the next change, or nil if the list has been reached.
func (p *progress) changeAfter(version string, objects map[string]string) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.hasReachedLocked(version, objects) {
		return nil
	}
	if p.changed == nil {
		p.changed = make(chan struct{})
	}
	return p.changed
}

// hasReachedLocked compares the versions of single objects, because a watch reaches the version of a list only with the
// next event or bookmark.
func (p *progress) hasReachedLocked(version string, objects map[string]string) bool {
	if !p.listed || p.passing {
		return false
	}
	for name, listed := range objects {
		if p.objects[name] != listed && !isAtLeast(p.version, listed) {
			return false
		}
	}
	for name, known := range p.objects {
		if _, isListed := objects[name]; !isListed && isAtLeast(version, known) {
			return false // the object was deleted before the list
		}
	}
	return true
}

// isAtLeast reports whether a resourceVersion is not older than another. It returns false if they cannot be compared.
func isAtLeast(version, than string) bool {
	order, err := resourceversion.CompareResourceVersion(version, than)
	return err == nil && order >= 0
}

// catchUp waits until the watcher has passed all changes to the mapper that the API server had stored when catchUp was
// called.
func (w *watcher) catchUp(ctx context.Context) error {
	var version string
	var objects map[string]string
	var err error
	if mistake := protect.Isolate(func() { version, objects, err = w.listVersions(ctx) }); mistake != nil {
		return mistake
	}
	if err != nil {
		return err
	}
	if w.loop.State().Open.IsZero() {
		w.loop.Wake() // the loop may be waiting after a failure, but the API server is available
	}
	return w.progress.reach(ctx, version, objects)
}

// acceptMetadata requests only the metadata of objects, or whole objects if the API server does not support that.
const acceptMetadata = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"

// listVersions returns the resourceVersions of the newest list and of its objects by name.
func (w *watcher) listVersions(ctx context.Context) (version string, objects map[string]string, err error) {
	options := listwatch.RequestOptions{ListOptions: metav1.ListOptions{LabelSelector: w.selector}}
	body, err := w.request(options).SetHeader("Accept", acceptMetadata).Stream(ctx)
	if err != nil {
		return "", nil, err
	}
	defer body.Close()
	objects = map[string]string{}
	newObject := func() runtime.Object { return &metav1.PartialObjectMetadata{} }
	list, kind, err := decodeList(json.NewDecoder(body), newObject, func(object runtime.Object) {
		m := object.(*metav1.PartialObjectMetadata)
		objects[m.Name] = m.ResourceVersion
	})
	if err == nil && kind != "PartialObjectMetadataList" {
		err = expectKind(kind, w.gvk.Kind+"List")
	}
	return list.ResourceVersion, objects, err
}
