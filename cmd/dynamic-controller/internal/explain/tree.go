package explain

import (
	"fmt"
	"slices"
	"time"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/instances"
)

// Node is an object in a tree.
type Node struct {
	Object  string `json:"object"`
	State   State  `json:"state"`
	Message string `json:"message,omitempty"`
	// Resource and Stage are the id and the stage of the resource in the Blueprint.
	Resource string   `json:"resource,omitempty"`
	Stage    *int     `json:"stage,omitempty"`
	Age      string   `json:"age"`
	Children []*Node  `json:"children,omitempty"`
	Unread   []string `json:"unread,omitempty"` // objects that could not be read
}

// Tree returns an object with its descendants. Children are ordered by stage.
func Tree(o *Object, now time.Time) *Node {
	state, message := o.State()
	n := &Node{
		Object: o.Name(), State: state, Message: message, Age: age(o.GetCreationTimestamp().Time, now), Unread: o.Unread,
	}
	if id, stage := instances.ResourceOf(o); id != "" {
		n.Resource, n.Stage = id, &stage
	}
	for _, child := range o.sorted() {
		node := Tree(child, now)
		node.State, node.Message = o.childState(child)
		n.Children = append(n.Children, node)
	}
	return n
}

// IsHealthy reports whether the object and all of its descendants are ready. Objects that could not be read are
// ignored.
func (n *Node) IsHealthy() bool {
	for _, child := range n.Children {
		if !child.IsHealthy() {
			return false
		}
	}
	return n.State == Ready
}

// Shorten limits the number of children for a short text. It does not limit their descendants.
func (n *Node) Shorten() {
	hidden := n.Children[min(maxShown, len(n.Children)):]
	if len(hidden) == 0 {
		return
	}
	notReady := len(slices.DeleteFunc(slices.Clone(hidden), (*Node).IsHealthy))
	n.Children = n.Children[:maxShown]
	n.Unread = append([]string{
		fmt.Sprintf("and %d more, %d of them not ready: -o wide shows all of them", len(hidden), notReady),
	}, n.Unread...)
}
