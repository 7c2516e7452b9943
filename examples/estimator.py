"""A scikit-learn estimator: fit, predict, and a certificate of what it cost."""

from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

import saltflat as sf

X, y = load_breast_cancer(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.3, random_state=0, stratify=y)

# What is public is declared: how many rows there are, roughly; the classes; and the range of each feature, which the
# documentation of this data set prints.
model = sf.PrivateClassifier(
    epsilon=2.0, delta=1e-5, method="dp-sat", population=398, classes=[0, 1], bounds=(X.min(0), X.max(0))
)
model.fit(X_train, y_train)
print(f"bounds declared: test accuracy {model.score(X_test, y_test):.1%}")

# Without bounds, a survey learns them within the same budget: noised histograms of all features, before training.
learning = sf.PrivateClassifier(epsilon=2.0, delta=1e-5, population=398, classes=[0, 1])
learning.fit(X_train, y_train)
print(f"bounds learned:  test accuracy {learning.score(X_test, y_test):.1%}\n")
print(learning.plan_)
print()
print("\n".join(str(learning.certificate_).splitlines()[:6]))
