"""A scikit-learn estimator: fit, predict, and a certificate of what it cost."""

from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

import saltflat as sf

X, y = load_breast_cancer(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.3, random_state=0, stratify=y)

# What is public is declared: how many rows there are, roughly; the classes; and the range of each feature, in round
# numbers from the documentation of the data set. Never X.min() and X.max(): each is some row's own number.
HIGHEST = [
    30, 40, 200, 2500, 0.2, 0.4, 0.5, 0.25, 0.35, 0.1,  # means: radius, texture, perimeter, area, smoothness, …
    3, 5, 25, 600, 0.05, 0.15, 0.4, 0.06, 0.1, 0.03,  # standard errors of the same
    40, 50, 250, 4500, 0.25, 1.0, 1.3, 0.3, 0.7, 0.25,  # the worst of them
]  # fmt: skip
model = sf.PrivateClassifier(
    epsilon=2.0, delta=1e-5, method="dp-sat", population=398, classes=[0, 1], bounds=(0, HIGHEST)
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
