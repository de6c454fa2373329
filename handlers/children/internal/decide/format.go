package decide

import (
	"errors"
	"fmt"
)

// MarkFormat is the newest known format of the annotation <name>/parent of marked children.
const MarkFormat = 1

// ErrNewerFormat is exported by package children.
var ErrNewerFormat = errors.New("a later version of the controller wrote it, and this version cannot read its format")

// CheckFormat returns an error if a format is newer than the newest known one.
func CheckFormat(key string, format, newest int) error {
	if format > newest {
		return fmt.Errorf("annotation %s: %w: it has format %d, the newest known one is %d",
			key, ErrNewerFormat, format, newest)
	}
	return nil
}
