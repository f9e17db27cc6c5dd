package scenarios

import (
	"strings"
	"testing"
)

func TestBuiltin(t *testing.T) {
	list, err := List()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range list {
		if s.Description == "" || s.Name+".toml" != s.File {
			t.Errorf("%s: name %q, description %q", s.File, s.Name, s.Description)
		}
		if !strings.HasPrefix(s.Text, "# ") {
			t.Errorf("%s: no comment to learn from", s.File)
		}
	}
}
