// Package nested is a package of a nested module.
package nested

import "example.com/engine/library"

// Name is a constant of the engine.
const Name = library.Name
